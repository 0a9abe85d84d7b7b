"""Clients that disconnect while their response is computed.

A WSGI application notices a departure only when it writes, which it does not for most of a
request's life. So one thread watches the sockets of all open requests: end of file means that the
client is gone, whether its request is queued, in prefill or decoding, streaming or not."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Watch:
    client: socket.socket
    leave: Callable[[], None]
    on: bool = True


class Departures:
    """`watch` may be called from any thread. A client that shuts down only its sending side
    counts as gone, as it does with nginx."""

    def __init__(self) -> None:
        # epoll and kqueue take (un)registrations while another thread waits in select
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="departures", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def watch(
        self, client: socket.socket | None, leave: Callable[[], None]
    ) -> Callable[[], object]:
        """Calls `leave`, at most once, when the client is gone. Returns a function that ends the
        watch; call it before the socket is closed, once or twice. Without a socket (the server is
        not gunicorn) there is nothing to watch."""
        if client is None:
            return lambda: None
        watch = _Watch(client, leave)
        with self._lock:
            self._selector.register(client, selectors.EVENT_READ, watch)
        return partial(self._end, watch)

    def _end(self, watch: _Watch) -> bool:
        """Returns whether this call ended it. Uses the lock, since the next request on the same
        connection may be watched as soon as this watch has ended, and its watch must stay."""
        with self._lock:
            ends, watch.on = watch.on, False
            if ends:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(watch.client)
        return ends

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                watch: _Watch = key.data
                if not self._end(watch):  # its handler has, by now
                    continue
                # A client that has sent its next request already is not gone; since its socket
                # stays readable, it cannot be watched any longer.
                try:
                    if watch.client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                        continue
                except BlockingIOError:
                    continue
                except OSError:  # reset by the peer, or closed by its handler
                    pass
                try:
                    watch.leave()
                except Exception:  # the other clients are still watched
                    log.exception("a request whose client has left cannot be cancelled")
