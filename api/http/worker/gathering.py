"""gunicorn's worker with threads, except that a connection holds a thread only while its request
runs.

The poller waits for clients: for a request, for the rest of it, to read the end of a response, and
then for the client's end. So a slow client costs memory and a file but no thread, until its time is
over, and neither does a refusal that is late (`Pace`). If connections run out, the one that waits
longest is closed; if the bodies of all requests need too much memory, or the system refuses a
thread, a request gets 503. A probe has threads of its own. Requests beyond those that could run
soon are pending in the intake (`handlers.py`)."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gunicorn.workers.gthread import (  # type: ignore[import-untyped]
    STOP_KEEPALIVE_LINGER,
    TConn,
    ThreadWorker,
)

from api.http.errors import ApiError, busy
from api.http.worker.connection import PIECE_BYTES, Incoming, Outgoing
from api.http.worker.handlers import ARRIVED_S, GENERATION_PATHS, Intake, Threads
from web.requests import Pace

log = logging.getLogger(__name__)

PROBE_PATHS = (b"/health", b"/metrics")
PROBE_THREADS = 2  # reserved for each of these, and started at once
# what a client still sends is read for this long; otherwise it may miss the response
LINGER_S = 1.0
SCAN_S = 0.25  # between two searches for passed deadlines
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_MANY_BYTES = "the server holds too many bytes of requests (--max-held-bytes); try again"
TOO_FEW_FILES = "the server has too few files for more waiting requests; try again"
NO_THREAD = "the system allows the server no further thread; try again"


class GatheringWorker(ThreadWorker):  # type: ignore[misc]
    """A subclass sets the limits."""

    client_timeout_s: float
    most_body_bytes: int
    most_held_bytes: int  # of all requests, until they are answered
    keys: Sequence[str]
    tpool: Threads
    intake: Intake[TConn]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # in the order in which they began to wait
        self._waiting: dict[TConn, Callable[[TConn, socket.socket], None]] = {}
        self._scanned_s = 0.0
        self._waste = bytearray(PIECE_BYTES)
        self._held_bytes = 0
        self.max_keepalived = self.worker_connections  # of gunicorn's own list, which stays empty
        self.intake = Intake()
        self.pace = Pace()

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """gunicorn expects more connections than threads; here, threads may be spare."""

    def get_thread_pool(self) -> Threads:
        self._probes = {path: Threads(PROBE_THREADS, started=PROBE_THREADS) for path in PROBE_PATHS}
        self._refusing = Threads(1, started=1)
        return Threads(self.cfg.threads)

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
        conn.incoming = conn.parser = Incoming(
            conn.sock, self.cfg, conn.client, self.most_body_bytes, deadline_s, self.keys
        )
        conn.outgoing = Outgoing(conn.sock, self.client_timeout_s)
        conn.held_bytes = 0
        conn.counted = False  # by the intake, as handled
        conn.arrived_s = None  # if it was pending in the intake
        conn.data_ready = True  # once a thread gets it
        self._wait(conn, self._read)

    def _serve(self, conn: TConn) -> None:
        """In a thread of its own."""
        client, conn.sock = conn.sock, conn.outgoing
        conn.outgoing.refuses, conn.outgoing.bodiless = None, conn.incoming.method == b"HEAD"
        ARRIVED_S.set(conn.arrived_s)
        stays = False
        try:
            stays = bool(self.handle(conn))
        finally:
            conn.sock = client
            self.method_queue.defer(self._finish, conn, stays)

    def _finish(self, conn: TConn, stays: bool) -> None:
        self.intake.handled -= conn.counted
        conn.counted, conn.arrived_s = False, None
        if self.intake.pending:
            self._take_pending()
        if conn.sock.fileno() < 0:  # gunicorn closes it if a response breaks off
            self._drop(conn)
            return
        conn.stays = stays
        late_s = self.pace.late_s(conn.client[0]) if conn.outgoing.refuses else 0.0
        if late_s and conn.outgoing.rest:
            if not stays:
                conn.incoming.drop_body()
            self._count(conn)
            conn.incoming.deadline_s = time.monotonic() + late_s
            self._wait(conn, self._late)
        else:
            self._send_rest(conn)

    def _late(self, conn: TConn, client: socket.socket) -> None:
        """The client of a late refusal or of a pending request leaves, or sends more, which is read
        later."""
        self.poller.unregister(client)
        if _has_left(partial(client.recv, 1, socket.MSG_PEEK)):
            self._drop(conn)

    def _send_rest(self, conn: TConn) -> None:
        """Then the connection waits for the next request, or ends."""
        now_s, incoming = time.monotonic(), conn.incoming
        if conn.outgoing.rest:
            incoming.deadline_s = conn.outgoing.deadline_s
            self._wait(conn, self._write, selectors.EVENT_WRITE)
        elif conn.stays:
            self._count(conn)
            idle_s = self.cfg.keepalive if self.alive else STOP_KEEPALIVE_LINGER
            incoming.deadline_s = now_s + (self.client_timeout_s if incoming.begun else idle_s)
            self._wait(conn, self._read)
            if incoming.begun:
                self._proceed(conn)
        else:
            incoming.deadline_s = now_s + LINGER_S
            self._wait(conn, self._discard)
            try:
                conn.sock.shutdown(socket.SHUT_WR)
            except OSError:  # it is gone
                self._drop(conn)

    def _write(self, conn: TConn, _client: socket.socket) -> None:
        try:
            conn.outgoing.flush()
        except OSError:  # the client is gone
            self._drop(conn)
            return
        conn.incoming.deadline_s = conn.outgoing.deadline_s
        if not conn.outgoing.rest:
            self._end_wait(conn)
            self._send_rest(conn)

    def _wait(
        self,
        conn: TConn,
        ready: Callable[[TConn, socket.socket], None],
        events: int = selectors.EVENT_READ,
    ) -> None:
        self._waiting[conn] = ready
        self.poller.register(conn.sock, events, partial(ready, conn))

    def _read(self, conn: TConn, client: socket.socket) -> None:
        incoming = conn.incoming
        try:
            data = client.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and incoming.request is None:
            self._drop(conn)
            return
        if not incoming.begun:
            incoming.deadline_s = time.monotonic() + self.client_timeout_s
        incoming.feed(data)
        self._proceed(conn)

    def _proceed(self, conn: TConn) -> None:
        """Gives a thread to a request that has begun, if it is ready, or will not be."""
        incoming, intake = conn.incoming, self.intake
        ready = incoming.is_ready()
        self._count(conn)
        held_bytes = self._held_bytes + incoming.missing_bytes
        if incoming.gathers_body and held_bytes > self.most_held_bytes:
            self._refuse(conn, busy(TOO_MANY_BYTES))
        elif not ready:
            if incoming.expects:
                incoming.expects = False
                with contextlib.suppress(OSError):  # the client continues without it after a while
                    conn.sock.send(CONTINUE)
            return
        self._end_wait(conn)
        generates = incoming.method == b"POST" and incoming.path in GENERATION_PATHS
        if generates and incoming.whole and incoming.admitted:
            if not intake.pending and intake.handled < intake.most():
                intake.handled += 1
                conn.counted = True
            elif (refusal := intake.refusal()) is not None:
                self._refuse(conn, refusal)
            # the other half is for probes and for clients that are still sending
            elif len(intake.pending) >= self.worker_connections // 2:
                self._refuse(conn, busy(TOO_FEW_FILES))
            else:
                intake.add(conn)
                late = partial(self._late, conn)
                self.poller.register(conn.sock, selectors.EVENT_READ, late)
                return
        self._hand_over(conn)

    def _take_pending(self) -> None:
        while (one := self.intake.take()) is not None:
            conn, arrived_s = one
            conn.counted, conn.arrived_s = True, arrived_s
            self._end_wait(conn)
            self._hand_over(conn)

    def _hand_over(self, conn: TConn) -> None:
        if conn.incoming.refusal is None:
            threads = self._probes.get(conn.incoming.path, self.tpool)
            try:
                threads.submit(partial(self._serve, conn))
                return
            except RuntimeError as error:
                log.warning("a request is refused: %s", error)
                self._refuse(conn, busy(NO_THREAD))
        self._refusing.submit(partial(self._serve, conn))

    def _refuse(self, conn: TConn, refusal: ApiError) -> None:
        conn.incoming.refuse(refusal)
        self._count(conn)

    def _count(self, conn: TConn) -> None:
        """A body is counted until its request is answered."""
        self._held_bytes += conn.incoming.held_bytes - conn.held_bytes
        conn.held_bytes = conn.incoming.held_bytes

    def _discard(self, conn: TConn, client: socket.socket) -> None:
        """A client that writes its whole request before it reads sees the response only if its data
        is read, and a connection closed with unread data is reset."""
        if _has_left(partial(client.recv_into, self._waste)):
            self._drop(conn)

    def _end_wait(self, conn: TConn) -> None:
        """Also of a request that was pending."""
        self._waiting.pop(conn, None)
        with contextlib.suppress(KeyError):  # it sent more
            self.poller.unregister(conn.sock)

    def _drop(self, conn: TConn) -> None:
        if conn in self.intake.pending:
            self.intake.leave(conn)
        if conn in self._waiting:
            self._end_wait(conn)
        self.nr_conns -= 1
        self._held_bytes -= conn.held_bytes
        conn.close()

    def _drop_oldest(self) -> None:
        if self._waiting:
            self._drop(next(iter(self._waiting)))

    def notify(self) -> None:
        """It would write a time for a limit (`timeout`) that is not set."""

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """And then ends connections that have waited too long."""
        waiting = self._waiting or self.intake.pending
        for key, _ in self.poller.select(min(timeout, SCAN_S) if waiting else timeout):
            # an event before this one may have ended its wait
            if self.poller.get_map().get(key.fd) is key:
                key.data(key.fileobj)
        now_s = time.monotonic()
        if now_s < self._scanned_s + SCAN_S:
            return
        self._scanned_s = now_s
        if self.intake.pending:
            self._take_pending()
        for conn, ready in list(self._waiting.items()):
            if conn.incoming.deadline_s > now_s:
                continue
            if ready == self._late:
                self._end_wait(conn)
                self._send_rest(conn)
            elif ready == self._read and conn.incoming.request is not None:
                self._end_wait(conn)
                self._hand_over(conn)  # its handler reports that the body did not arrive in time
            else:
                self._drop(conn)

    def _cap_keepalive(self, deadline: float) -> None:
        """Shortens the waits for clients, except for those that are still reading, and of late
        refusals, so that the server's end does not wait for them."""
        for conn, ready in self._waiting.items():
            if not conn.outgoing.rest or ready == self._late:
                conn.incoming.deadline_s = min(conn.incoming.deadline_s, deadline)


def _has_left(read: Callable[[], object]) -> bool:
    """Whether a client's socket has no more to read."""
    try:
        return not read()
    except BlockingIOError:
        return False
    except OSError:  # reset
        return True
