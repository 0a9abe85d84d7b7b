"""gunicorn's worker with threads, except that a connection holds a thread only while its request
runs.

The poller waits for clients: for a request, for the rest of it, and after a response for the
client's end. So a slow client costs memory and a file but no thread, until its time is over. If
connections run out, the one that waits longest is closed."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from gunicorn.http import get_parser  # type: ignore[import-untyped]
from gunicorn.workers.gthread import (  # type: ignore[import-untyped]
    STOP_KEEPALIVE_LINGER,
    TConn,
    ThreadWorker,
)

from api.http.incoming import PIECE_BYTES, Incoming

log = logging.getLogger(__name__)

KEPT_PATHS = frozenset({b"/health", b"/metrics"})
KEPT_THREADS = 4  # reserved for these
# what a client still sends is read for this long; otherwise it may miss the response
LINGER_S = 1.0
SCAN_S = 0.25  # between two searches for passed deadlines
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class GatheringWorker(ThreadWorker):  # type: ignore[misc]
    """A subclass sets the limits."""

    client_timeout_s: float
    most_body_bytes: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # in the order in which they began to wait
        self._waiting: dict[TConn, Callable[[TConn, socket.socket], None]] = {}
        self._scanned_s = 0.0
        self._waste = bytearray(PIECE_BYTES)

    def get_thread_pool(self) -> ThreadPoolExecutor:
        self._kept = ThreadPoolExecutor(KEPT_THREADS)
        return ThreadPoolExecutor(self.cfg.threads)

    def accept(self, listener: Any) -> None:
        try:
            super().accept(listener)
        except OSError as error:  # no file descriptor is left
            log.warning("a connection cannot be accepted: %s", error)
            self._drop_oldest()
        if self.nr_conns >= self.worker_connections:
            self._drop_oldest()

    def enqueue_req(self, conn: TConn) -> None:
        """A new connection."""
        deadline_s = time.monotonic() + self.client_timeout_s
        conn.incoming = Incoming(conn.sock, self.most_body_bytes, deadline_s)
        conn.parser = get_parser(self.cfg, conn.incoming, conn.client)
        conn.data_ready = True  # once a thread gets it
        self._wait(conn, self._read)

    def handle_request(self, request: Any, conn: TConn) -> object:
        if conn.incoming.whole:
            request._expected_100_continue = False  # it was sent
        else:  # the beginning of the next request is unknown
            request.force_close()
        return super().handle_request(request, conn)

    def _keepalive_after(self, conn: TConn, keepalive: object) -> bool:
        """Drops the part of a complete body that the application did not read."""
        return bool(keepalive and conn.parser.finish_body())

    def finish_request(self, conn: TConn, handled: Future[object]) -> None:
        if conn.sock.fileno() < 0:  # gunicorn closes it if a response breaks off
            self.nr_conns -= 1
            return
        now_s = time.monotonic()
        if not handled.cancelled() and handled.exception() is None and handled.result():
            conn.incoming.next(conn.parser.unreader.take_buffered())
            idle_s = self.cfg.keepalive if self.alive else STOP_KEEPALIVE_LINGER
            conn.incoming.deadline_s = now_s + (
                self.client_timeout_s if conn.incoming.begun else idle_s
            )
            self._wait(conn, self._read)
            self._go_on(conn)
        else:
            conn.incoming.deadline_s = now_s + LINGER_S
            self._wait(conn, self._discard)
            try:
                conn.sock.shutdown(socket.SHUT_WR)
            except OSError:  # it is gone
                self._drop(conn)

    def _wait(self, conn: TConn, readable: Callable[[TConn, socket.socket], None]) -> None:
        conn.sock.setblocking(False)
        self._waiting[conn] = readable
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(readable, conn))

    def _read(self, conn: TConn, client: socket.socket) -> None:
        try:
            data = client.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not conn.incoming.begun:
            if not data:
                self._drop(conn)
                return
            conn.incoming.deadline_s = time.monotonic() + self.client_timeout_s
        conn.incoming.feed(data)
        self._go_on(conn)

    def _go_on(self, conn: TConn) -> None:
        """Gives a thread to a request that is ready."""
        incoming = conn.incoming
        if not incoming.begun:
            return
        if incoming.is_ready():
            self._hand_over(conn)
        elif incoming.expects:
            incoming.expects = False
            with contextlib.suppress(OSError):  # the client continues without it after a while
                conn.sock.send(CONTINUE)

    def _hand_over(self, conn: TConn) -> None:
        self._wake(conn)
        threads = self._kept if conn.incoming.path in KEPT_PATHS else self.tpool
        handled = threads.submit(self.handle, conn)
        handled.add_done_callback(
            lambda done: self.method_queue.defer(self.finish_request, conn, done)
        )

    def _discard(self, conn: TConn, client: socket.socket) -> None:
        """A client that writes its whole request before it reads sees the response only if its data
        is read, and a connection closed with unread data is reset."""
        try:
            if client.recv_into(self._waste):
                return
        except BlockingIOError:
            return
        except OSError:  # reset
            pass
        self._drop(conn)

    def _wake(self, conn: TConn) -> None:
        del self._waiting[conn]
        self.poller.unregister(conn.sock)

    def _drop(self, conn: TConn) -> None:
        self._wake(conn)
        self.nr_conns -= 1
        conn.close()

    def _drop_oldest(self) -> None:
        if self._waiting:
            self._drop(next(iter(self._waiting)))

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(min(timeout, SCAN_S) if self._waiting else timeout)

    def murder_pending(self) -> None:
        """gunicorn's loop calls it after all events: ends connections that have waited too long."""
        now_s = time.monotonic()
        if now_s < self._scanned_s + SCAN_S:
            return
        self._scanned_s = now_s
        for conn, readable in list(self._waiting.items()):
            if conn.incoming.deadline_s > now_s:
                continue
            if readable == self._read and conn.incoming.has_head:
                self._hand_over(conn)  # its handler reports that the body did not arrive in time
            else:
                self._drop(conn)

    def _cap_keepalive(self, deadline: float) -> None:
        """Shortens the waits for clients, so that the server's end does not wait for them."""
        for conn in self._waiting:
            conn.incoming.deadline_s = min(conn.incoming.deadline_s, deadline)
