"""Connections to upstreams, which are used again: HTTP/1.1, read by llhttp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import cast
from urllib.parse import urlsplit

import httptools

from router.http.streams import Stream
from router.rules.messages.headers import Headers, Pairs

MAX_HEAD_BYTES = 64 * 1024
# Servers close idle connections (gunicorn after 2 s, uvicorn after 5). A request sent at that
# moment is lost, so the router closes idle connections earlier.
KEEP_ALIVE_S = 1.5
# These may be sent again if a server closed an idle connection at this moment.
_IDEMPOTENT = frozenset({"GET", "DELETE"})

RequestBytes = bytes | bytearray | AsyncIterator[bytes]


class UnreachableError(OSError):
    """There is no connection to the upstream."""


class BrokenAnswerError(OSError):
    """The upstream sent no complete answer."""


class UpstreamAnswer:
    """An upstream's answer, whose body may still be arriving."""

    __slots__ = (
        "body", "connection", "content_length", "ends_with_connection", "headers", "media_type",
        "status",
    )  # fmt: skip

    def __init__(self, connection: UpstreamConnection, status: int, headers: Headers) -> None:
        self.connection = connection
        self.status = status
        self.headers = headers
        self.body = Stream(connection.read_or_pause)
        self.media_type = headers.get("Content-Type").partition(";")[0].strip().lower()
        length = headers.get("Content-Length")
        self.content_length = int(length) if length else None
        self.ends_with_connection = not length and not headers.get("Transfer-Encoding")


class UpstreamConnection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._head: asyncio.Future[UpstreamAnswer] | None = None  # of the request that was sent
        self._answer: UpstreamAnswer | None = None
        self._informs = False  # what arrives is a 1xx
        self._keeps_alive = False
        self._answered = False  # something has arrived
        self._pairs: Pairs = []
        self._head_bytes = 0
        self._in_head = False
        self._upload: asyncio.Task[None] | None = None
        self._behind = False
        self._drained: asyncio.Future[None] | None = None
        self._paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, head: bytes, body: RequestBytes, is_chunked: bool) -> UpstreamAnswer:
        """Sends a request; the answer when its head has arrived. Raises BrokenAnswerError, and what
        `body` raises."""
        assert self._transport is not None
        self._head = self._loop.create_future()
        self._answer, self._answered = None, False
        if isinstance(body, bytes | bytearray):
            # uvloop takes both as they are, without a copy
            self._transport.writelines([head, body] if body else [head])
        else:
            self._transport.write(head)
            self._upload = self._loop.create_task(self._send(body, is_chunked))
        try:
            return await self._head
        finally:
            self._head = None

    def can_ask_again(self) -> bool:
        """Whether the last request broke off before anything of an answer came."""
        return not self._answered

    def end(self) -> bool:
        """No more is wanted of the answer. Returns whether another request may be sent."""
        whole = self._answer is not None and self._answer.body.is_whole
        if self._upload is not None:
            whole = whole and self._upload.done()
            self._upload.cancel()
            self._upload = None
        if (
            whole
            and self.is_open
            and self._keeps_alive
            and not cast(asyncio.Transport, self._transport).get_write_buffer_size()
        ):
            self._answer = None
            return True
        self._answer = None  # it refers to this object, too
        self.abort()
        return False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _send(self, body: AsyncIterator[bytes], is_chunked: bool) -> None:
        try:
            async for data in body:
                if self._transport is None:
                    return
                self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
                while self._behind:
                    self._drained = self._loop.create_future()
                    await self._drained
            if is_chunked and self._transport is not None:
                self._transport.write(b"0\r\n\r\n")
        except OSError as error:
            self._fail(error)
            self.abort()

    def _fail(self, error: OSError) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        elif self._answer is not None:
            self._answer.body.fail(error)

    # --- the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.resume_writing()
        answer = self._answer
        if answer is not None and answer.ends_with_connection and not exc:
            answer.body.end()
        self._fail(BrokenAnswerError(str(exc) if exc else "Server disconnected"))
        del self._parser  # it refers to this object, too

    def data_received(self, data: bytes) -> None:
        self._answered, begun = True, self._in_head
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self._fail(BrokenAnswerError(str(error.__context__ or error)))
            self.abort()
        else:
            if begun and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._fail(BrokenAnswerError("its headers are too long"))
                    self.abort()

    def pause_writing(self) -> None:
        self._behind = True

    def resume_writing(self) -> None:
        self._behind = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def read_or_pause(self) -> None:
        """Takes nothing from the socket while the body is full."""
        pause = self._answer is not None and self._answer.body.is_full
        if self._transport is not None and pause is not self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

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
        if headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            raise BrokenAnswerError("its Transfer-Encoding is not chunked")
        self._keeps_alive = self._parser.should_keep_alive()
        self._answer = UpstreamAnswer(self, status, headers)
        self._head.set_result(self._answer)

    def on_body(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.body.feed(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._informs:
            self._answer.body.end()


class Pool:
    """Connects to upstreams, and keeps idle connections for KEEP_ALIVE_S."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tls = ssl.create_default_context()

    async def ask(
        self,
        method: str,
        origin: str,
        target: bytes,
        headers: Pairs,
        body: RequestBytes = b"",
        length: int | None = None,
    ) -> UpstreamAnswer:
        """Sends a request; the answer when its head has arrived. `done` must follow. `length`: of a
        body that is still arriving; None: it is not known.

        Raises UnreachableError, BrokenAnswerError, and what `body` raises."""
        host = origin.partition("://")[2].encode()
        lines = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method.encode(), target, host)]
        lines += [b"%b: %b\r\n" % pair for pair in headers]
        arriving = not isinstance(body, bytes | bytearray)
        if isinstance(body, bytes | bytearray):
            length = len(body) if body or method == "POST" else None
        if length is not None:
            lines.append(b"Content-Length: %d\r\n" % length)
        elif arriving:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        while True:
            connection, used = self._take(origin)
            if connection is None:
                connection = await self._connect(origin)
            try:
                return await connection.ask(head, body, arriving and length is None)
            except BaseException as error:
                again = used and method in _IDEMPOTENT and not arriving
                again = again and connection.can_ask_again()
                connection.end()
                if not (again and isinstance(error, BrokenAnswerError)):
                    raise

    def done(self, answer: UpstreamAnswer) -> None:
        """Keeps the connection of an answer, unless a part of it is still to come."""
        connection = answer.connection
        if connection.end():
            connection.idle_since = self._loop.time()
            self._idle.setdefault(connection.origin, []).append(connection)
            if self._timer is None:
                self._timer = self._loop.call_later(KEEP_ALIVE_S, self._expire)

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, origin: str) -> tuple[UpstreamConnection | None, bool]:
        """An idle connection, the last used one, and whether there was one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since + KEEP_ALIVE_S > self._loop.time():
                return connection, True
            connection.abort()
        return None, False

    async def _connect(self, origin: str) -> UpstreamConnection:
        parts = urlsplit(origin)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(origin),
                    parts.hostname or "",
                    port,
                    ssl=self._tls if secure else None,
                )
        except TimeoutError:
            raise UnreachableError(f"no connection in {self._connect_timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise UnreachableError(str(error)) from error
        return connection

    def _expire(self) -> None:
        late, self._timer = self._loop.time() - KEEP_ALIVE_S, None
        for origin, connections in list(self._idle.items()):
            kept = [c for c in connections if c.is_open and c.idle_since > late]
            for connection in set(connections) - set(kept):
                connection.abort()
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
        if self._idle:
            self._timer = self._loop.call_later(KEEP_ALIVE_S / 2, self._expire)
