"""Clients that leave while their answer is computed.

A WSGI application hears of it only when it writes, which for most of a request's life it does
not. So one thread watches the sockets of all open requests: end of file means that the client is
gone, queued, in prefill or decoding, streaming or not.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Departures:
    """`watch` may be called from any thread. A client that shuts down only its sending side
    counts as gone, as it does with nginx."""

    def __init__(self) -> None:
        # epoll and kqueue take (un)registrations while another thread waits in select
        self._selector = selectors.DefaultSelector()
        threading.Thread(target=self._run, name="departures", daemon=True).start()

    def watch(self, client: socket.socket | None, leave: Callable[[], None]) -> Callable[[], None]:
        """Calls `leave`, at most once, when the client has gone. Returns what ends the watch,
        which must be called before the socket is closed and may be called twice. Without a
        socket (the server is not gunicorn) there is nothing to watch."""
        if client is None:
            return lambda: None
        self._selector.register(client, selectors.EVENT_READ, leave)

        def unwatch() -> None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(client)

        return unwatch

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if not isinstance(key.fileobj, socket.socket):
                    continue
                # its handler may have been faster, and the next request on the same connection
                # be watched by now: that one's watch must stay
                if self._selector.get_map().get(key.fileobj) is not key:
                    continue
                with suppress(KeyError, ValueError):
                    self._selector.unregister(key.fileobj)
                # a client may have sent its next request already: it is not gone, and since
                # its socket stays readable it cannot be watched any longer
                if _is_gone(key.fileobj):
                    key.data()


def _is_gone(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:  # reset by the peer, or closed by its handler
        return True
