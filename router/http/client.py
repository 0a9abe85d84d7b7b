"""Connections to upstreams, which are used again: HTTP/1.1, read by llhttp."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic
from typing import cast
from urllib.parse import urlsplit

import httptools

from router.http.body import Body
from router.rules.messages.errors import RouterError
from router.rules.messages.headers import Headers, Pairs

MAX_HEAD_BYTES = 64 * 1024
# Servers close idle connections (gunicorn after 2 s, uvicorn after 5). A request sent at that
# moment is lost, so the router closes idle connections earlier.
KEEP_ALIVE_S = 1.5
LOOKS = 8  # at all connections, within the shortest of the times that they may take
# These may be sent again if a server closed an idle connection at this moment.
_IDEMPOTENT = frozenset({"GET", "DELETE"})


class UnreachableError(OSError):
    """There is no connection to the upstream."""


class BrokenAnswerError(OSError):
    """The upstream sent no complete answer."""


class UpstreamAnswer:
    """An upstream's, whose body may still be arriving."""

    __slots__ = (
        "body", "connection", "content_length", "ends_with_connection", "headers", "media_type",
        "status",
    )  # fmt: skip

    def __init__(self, connection: UpstreamConnection, status: int, headers: Headers) -> None:
        self.connection = connection
        self.status = status
        self.headers = headers
        self.body = Body()
        self.media_type = headers.text(b"content-type").partition(";")[0].strip().lower()
        length = headers.get(b"content-length")
        self.content_length = int(length) if length else None
        self.ends_with_connection = not length and not headers.get(b"transfer-encoding")


class UpstreamConnection(asyncio.Protocol):
    """One request at a time. `active_s`: when a piece of a body was last passed on in either
    direction, before that when the request was sent. `limit_s`: how long it may be silent."""

    def __init__(self, origin: str, pool: Pool) -> None:
        self.origin = origin
        self.active_s = 0.0
        self.limit_s = 0.0
        self.has_answered = False  # something has arrived
        self._pool = pool
        self._loop = pool.loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._head: asyncio.Future[UpstreamAnswer] | None = None  # of the request that was sent
        self._answer: UpstreamAnswer | None = None
        self._informs = False  # what arrives is a 1xx
        self._keeps_alive = False
        self._pairs: Pairs = []
        self._head_bytes = 0
        self._in_head = False
        self._upload: Body | None = None
        self._uploading: asyncio.Task[None] | None = None
        self._paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(
        self, head: bytes, body: bytes | bytearray | Body, is_chunked: bool
    ) -> UpstreamAnswer:
        """Sends a request; the answer when its head has arrived. Raises BrokenAnswerError,
        TimeoutError, and why `body` broke off."""
        assert self._transport is not None
        self._head = self._loop.create_future()
        self._answer, self.has_answered, self.active_s = None, False, monotonic()
        if isinstance(body, Body):
            self._transport.write(head)
            self._upload = body
            self._uploading = self._loop.create_task(self._send(body, is_chunked))
        else:
            # uvloop takes both as they are, without a copy
            self._transport.writelines([head, body] if body else [head])
        try:
            return await self._head
        finally:
            self._head = None

    def end(self) -> bool:
        """No more is wanted of the answer. Returns whether another request may be sent."""
        whole = self._answer is not None and self._answer.body.is_whole
        self._answer = None  # it refers to this object, too
        if self._uploading is not None:
            whole = whole and self._uploading.done()
            self._uploading.cancel()
            self.resume_writing()
            self._upload = self._uploading = None
        transport = self._transport
        if whole and self._keeps_alive and transport is not None and not transport.is_closing():
            self.pause(False)
            if not transport.get_write_buffer_size():
                return True
        self.abort()
        return False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: Exception) -> None:
        """For who waits for the answer or takes its body."""
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        elif self._answer is not None:
            self._answer.body.fail(error)

    def pause(self, pause: bool) -> None:
        """Takes nothing from the socket: the client is behind in reading."""
        if self._transport is not None and pause is not self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    async def _send(self, body: Body, is_chunked: bool) -> None:
        def take(data: bytes) -> None:
            self.active_s = monotonic()
            if self._transport is not None:
                data = b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data
                self._transport.write(data)

        try:
            await body.flow(take)
            if is_chunked and self._transport is not None:
                self._transport.write(b"0\r\n\r\n")
        except (OSError, RouterError) as error:
            self.fail(error)
            self.abort()

    # --- the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.resume_writing()
        answer = self._answer
        if answer is not None and not exc and answer.ends_with_connection:
            answer.body.end()
        self.fail(BrokenAnswerError(str(exc) if exc else "Server disconnected"))
        del self._parser  # it refers to this object, too

    def data_received(self, data: bytes) -> None:
        self.has_answered, begun = True, self._in_head
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self.fail(BrokenAnswerError(str(error.__context__ or error)))
            self.abort()
        else:
            if begun and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self.fail(BrokenAnswerError("its headers are too long"))
                    self.abort()

    def pause_writing(self) -> None:
        if self._upload is not None:
            self._upload.block(True)

    def resume_writing(self) -> None:
        if self._upload is not None:
            self._upload.block(False)

    # --- what the parser calls ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._pairs, self._head_bytes, self._in_head = [], 0, True
        if self._head is None or self._head.done():
            raise BrokenAnswerError("it answers what was not asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._pairs.append((name, value))
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise BrokenAnswerError("its headers are too long")

    def on_headers_complete(self) -> None:
        self._in_head = False
        status = self._parser.get_status_code()
        self._informs = 100 <= status < 200
        if status == 101:
            raise BrokenAnswerError("it speaks another protocol")
        if self._informs or self._head is None:
            return
        headers = Headers(self._pairs)
        if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise BrokenAnswerError("its Transfer-Encoding is not chunked")
        self._keeps_alive = self._parser.should_keep_alive()
        self._answer = UpstreamAnswer(self, status, headers)
        self._head.set_result(self._answer)

    def on_body(self, data: bytes) -> None:
        if self._answer is not None:
            self.active_s, self.limit_s = monotonic(), self._pool.idle_s
            self._answer.body.feed(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._informs:
            self._answer.body.end()


class Pool:
    """Connects to upstreams, and keeps idle connections for KEEP_ALIVE_S. One timer looks at all
    connections: one that waits for more than its `limit_s`, until the first byte of the answer's
    body, or after it for more than `idle_s`, gets a TimeoutError."""

    def __init__(self, connect_timeout_s: float, idle_s: float, shortest_s: float) -> None:
        """`shortest_s`: of the limits that requests have, but for `idle_s`."""
        self.loop = asyncio.get_running_loop()
        self.idle_s = idle_s
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self._busy: set[UpstreamConnection] = set()
        self._every_s = min(KEEP_ALIVE_S, idle_s, shortest_s) / LOOKS
        self._tls = ssl.create_default_context()
        self._looked_s = 0.0
        self._look()

    async def ask(
        self,
        method: str,
        origin: str,
        target: bytes,
        headers: Pairs,
        body: bytes | bytearray | Body = b"",
        length: int | None = None,
        limit_s: float = float("inf"),
    ) -> UpstreamAnswer:
        """Sends a request; the answer when its head has arrived. `done` must follow. `length`: of a
        body that is still arriving; None: it is not known.

        Raises UnreachableError, BrokenAnswerError, TimeoutError, and why `body` broke off."""
        host = origin.partition("://")[2].encode()
        lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (method.encode(), target, host)]
        lines += [b"%b: %b" % pair for pair in headers]
        arriving = isinstance(body, Body)
        if not isinstance(body, Body):
            length = len(body) if body or method == "POST" else None
        if length is not None:
            lines.append(b"Content-Length: %d" % length)
        elif arriving:
            lines.append(b"Transfer-Encoding: chunked")
        lines.append(b"\r\n")
        head = b"\r\n".join(lines)
        while True:
            connection = self._take(origin)
            used = connection is not None
            if connection is None:
                connection = await self._connect(origin)
            connection.limit_s = limit_s
            self._busy.add(connection)
            try:
                return await connection.ask(head, body, arriving and length is None)
            except BaseException as error:
                self._busy.discard(connection)
                connection.end()
                again = used and method in _IDEMPOTENT and not arriving
                if not (again and isinstance(error, BrokenAnswerError)) or connection.has_answered:
                    raise

    def done(self, answer: UpstreamAnswer) -> None:
        """Keeps the connection of an answer, unless a part of it is still to come."""
        connection = answer.connection
        self._busy.discard(connection)
        if connection.end():
            connection.active_s = monotonic()
            self._idle.setdefault(connection.origin, []).append(connection)

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._timer.cancel()

    def _take(self, origin: str) -> UpstreamConnection | None:
        """An idle connection, the last used one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.active_s + KEEP_ALIVE_S > monotonic():
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: str) -> UpstreamConnection:
        parts = urlsplit(origin)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self.loop.create_connection(
                    lambda: UpstreamConnection(origin, self),
                    parts.hostname or "",
                    port,
                    ssl=self._tls if secure else None,
                )
        except TimeoutError:
            raise UnreachableError(f"no connection in {self._connect_timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise UnreachableError(str(error)) from error
        return connection

    def _look(self) -> None:
        self._timer = self.loop.call_later(self._every_s, self._look)
        now = monotonic()
        # after a pause of this process, what has arrived meanwhile is still to be read
        if now - self._looked_s < 2 * self._every_s:
            for connection in [c for c in self._busy if c.active_s + c.limit_s < now]:
                connection.fail(TimeoutError())
        self._looked_s = now
        for origin, connections in list(self._idle.items()):
            kept = [c for c in connections if c.is_open and c.active_s + KEEP_ALIVE_S > now]
            for connection in set(connections) - set(kept):
                connection.abort()
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
