"""A client's connection: HTTP/1.1, one request after the other. llhttp reads the requests,
strictly: what two servers could understand differently is refused.

A client that falls behind in reading must read at a least rate.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from http.client import responses as PHRASES
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import httptools

from router import log
from router.http.body import Body
from router.rules.messages import errors
from router.rules.messages.errors import Response, RouterError
from router.rules.messages.headers import Headers, Pairs

if TYPE_CHECKING:
    from router.http.client import UpstreamConnection
    from router.http.connections import Connections

MAX_LINE_BYTES = 32 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
MOST_AHEAD = 16  # requests that a client may send before it has the answer to an earlier one
MOST_AHEAD_AT_ONCE = 1024  # that arrive with one piece, whose reading cannot be paused
BYTES_PER_S = 64 * 1024  # that a client must read
# How long the rest of a refused body is read, so that the client sees the refusal.
LINGER_S = 2.0
CONTINUE = b"100-continue"
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class ClientGoneError(ConnectionError):
    """The client closed its connection or stopped reading."""


class ClientRequest:
    """A client's request, whose body may still be arriving, and its answer. `target`: path and
    query as they came; `path`: decoded. `status`: of the answer, once it has begun.

    Nobody waits until it is sent: the connection's `source`, an upstream's connection, is paused
    while the client is behind in reading."""

    __slots__ = (
        "_chunked", "body", "connection", "content_length", "expects", "has_body", "headers",
        "is_http11", "keep_alive", "method", "path", "refusal", "status", "target",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, method: str, target: bytes, headers: Headers
    ) -> None:
        self.connection = connection
        self._chunked = False
        self.expects = headers.get(b"expect", b"").lower() == CONTINUE
        self.method = method
        self.headers = headers
        self.body = Body(connection)
        self.target = target
        self.path = unquote(target.partition(b"?")[0].decode("ascii"))
        self.refusal: RouterError | None = None
        self.is_http11 = True
        self.keep_alive = False
        self.has_body = False
        self.content_length: int | None = None
        self.status = 0

    def begin(self, status: int, headers: Pairs, length: int | None, data: bytes = b"") -> None:
        """Sends status, headers and the first bytes of the body. `length`: of the body; None: it is
        not known. Raises ClientGoneError."""
        self.status = status
        bodiless = status in (204, 304)
        self._chunked = length is None and self.is_http11 and not bodiless
        if not self.body.is_whole or (length is None and not self._chunked and not bodiless):
            self.keep_alive = False
        lines = [b"HTTP/1.1 %d %b" % (status, PHRASES.get(status, "").encode())]
        lines += [b"%b: %b" % pair for pair in headers]
        lines += [b"%b: %b" % pair for pair in self.connection.own_headers(self, headers)]
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif length is not None and not bodiless:
            lines.append(b"Content-Length: %d" % length)
        if not self.keep_alive:
            lines.append(b"Connection: close")
        elif not self.is_http11:
            lines.append(b"Connection: keep-alive")
        lines.append(b"\r\n")
        head = b"\r\n".join(lines)
        self.connection.send(head + self._framed(data) if data else head)

    def write(self, data: bytes) -> None:
        """Sends more of the body. Raises ClientGoneError."""
        self.connection.send(self._framed(data))

    def end(self) -> None:
        """Ends the body. Raises ClientGoneError."""
        if self._chunked and self.method != "HEAD":
            self.connection.send(b"0\r\n\r\n")

    def _framed(self, data: bytes) -> bytes:
        if self.method == "HEAD":
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data


class Connection(asyncio.Protocol):
    """A client's. One that has fallen behind in reading has `patience_s` seconds, and a second more
    for each `BYTES_PER_S` bytes that it reads."""

    def __init__(self, connections: Connections) -> None:
        self._loop = connections.loop
        self.connections = connections
        self.own_headers = connections.own_headers
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.remote = ""
        # the head that is being read
        self._target = b""
        self._pairs: Pairs = []
        self._head_bytes = 0
        self._in_head = False
        self._replays = False
        self._arriving: ClientRequest | None = None  # its body is being read
        self._requests: deque[ClientRequest] = deque()  # the first is being answered
        self._task: asyncio.Task[None] | None = None
        self._deaf = False  # what comes is not read any more
        self._paused = False
        self.is_behind = False  # the client, in reading
        self.source: UpstreamConnection | None = None
        self._drained: asyncio.Future[None] | None = None
        self._left_s = connections.patience_s
        self._changed_s = 0.0  # when it last fell behind or caught up
        self._limit: asyncio.TimerHandle | None = None

    # --- the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if peer else ""
        # any byte that the socket does not accept counts as behind, also after the response's end
        self._transport.set_write_buffer_limits(high=0)
        self.connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self._limit is not None:
            self._limit.cancel()
        self._catch_up()
        for request in self._requests:
            request.body.fail(errors.broken_body("The client left."))
        self.cancel()
        del self._parser  # it refers to this object, too
        self.connections.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        begun = self._in_head
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, RouterError):
                log.LOGGER.exception("internal error")
                self.drop()
                return
            self._refuse(cause)
        except httptools.HttpParserError as error:
            self._refuse(errors.invalid(f"The request is malformed: {error}"))
        else:
            if self._in_head and not begun and not self._requests:
                self.connections.set_waiting(self, True)  # for the rest of the head
            if begun and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(_head_too_long())

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is spoken here, so the request counts without its wish for one. The
            # parser has skipped its body: another one reads it.
            request, self._replays = self._arriving, True
            assert request is not None
            head = b"POST / HTTP/1.1\r\n"
            if request.content_length is not None:
                head += b"Content-Length: %d\r\n" % request.content_length
            elif request.has_body:
                head += b"Transfer-Encoding: chunked\r\n"
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(head + b"\r\n")
            if rest := data[upgrade.args[0] :]:
                self._parse(rest)

    def pause_writing(self) -> None:
        transport, now = self._transport, self._loop.time()
        if transport is None:
            return
        self.is_behind = True
        if self.source is not None:
            self.source.pause(True)
        self._left_s = min(self.connections.patience_s, self._left_s + now - self._changed_s)
        self._left_s += transport.get_write_buffer_size() / BYTES_PER_S
        self._changed_s = now
        self._limit = self._loop.call_later(self._left_s, transport.abort)

    def resume_writing(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._left_s -= self._loop.time() - self._changed_s
            self._changed_s = self._loop.time()
        self._catch_up()

    def _catch_up(self) -> None:
        self.is_behind = False
        if self.source is not None:
            self.source.pause(False)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def send(self, data: bytes) -> None:
        """Raises ClientGoneError."""
        if self._transport is None or self._transport.is_closing():
            raise ClientGoneError
        self._transport.write(data)

    def cancel(self) -> None:
        """Ends the task that answers a request."""
        if self._task is not None:
            self._task.cancel()

    def drop(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes it if no request is being answered."""
        if self._transport is not None and not self._requests:
            self._transport.close()

    # --- what the parser calls ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._replays:
            return
        self._target, self._pairs, self._head_bytes, self._in_head = b"", [], 0, True
        if len(self._requests) > MOST_AHEAD_AT_ONCE:
            raise errors.invalid("Too many requests before an answer.")

    def on_url(self, url: bytes) -> None:
        if self._replays:
            return
        self._target += url
        if len(self._target) > MAX_LINE_BYTES:
            raise _head_too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # it stands behind a body in chunks
        self._pairs.append((name, value))
        self._head_bytes += len(name) + len(value)
        long = max(len(name) + len(value), self._head_bytes - MAX_HEAD_BYTES + MAX_LINE_BYTES)
        if long > MAX_LINE_BYTES or len(self._pairs) > MAX_HEADERS:
            raise _head_too_long()

    def on_headers_complete(self) -> None:
        if self._replays:
            self._replays = False
            return
        self._in_head = False
        method = self._parser.get_method().decode()
        headers = Headers(self._pairs)
        target = _ORIGIN.sub(b"", self._target, count=1).partition(b"#")[0]
        request = ClientRequest(self, method, target, headers)
        _judge(request, self._parser.get_http_version())
        request.keep_alive = self._parser.should_keep_alive()
        self._arriving = request
        self._requests.append(request)
        if self._task is None:
            self._next()
        else:
            self.read_or_pause()

    def on_body(self, data: bytes) -> None:
        assert self._arriving is not None
        self._arriving.body.feed(data)
        if self._arriving.body.is_full:
            self.read_or_pause()

    def on_message_complete(self) -> None:
        request = self._arriving
        assert request is not None
        if self._parser.should_upgrade():
            return  # its body is still to be read
        request.body.end()
        if not request.keep_alive:
            self._deaf = True

    # --- the requests ------------------------------------------------------------------------

    def body_waits(self, waits: bool) -> None:
        """Whether the request that is being answered waits for more of its body."""
        if self._requests:
            request = self._requests[0]
            if waits and request.expects and request.is_http11 and not request.status:
                request.expects = False
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.connections.set_waiting(self, waits)

    def _refuse(self, error: RouterError) -> None:
        """Answers what cannot be read, after the requests before it."""
        self._deaf = True
        if not self._in_head and self._arriving is not None and not self._arriving.body.is_whole:
            self._arriving.body.fail(errors.broken_body(error.message))
            return
        request = ClientRequest(self, "", b"", Headers(self._pairs))
        request.body.end()
        request.refusal = error
        self._requests.append(request)
        if self._task is None:
            self._next()

    def _next(self) -> None:
        self.connections.set_waiting(self, False)
        self._task = self._loop.create_task(self._answer(self._requests[0]))

    async def _answer(self, request: ClientRequest) -> None:
        try:
            if request.refusal is not None:
                response: Response | None = errors.response(request.refusal, "", openai=True)
            else:
                response = await self.connections.answer(request)
            if response is not None:
                body = response.body
                request.begin(response.status, response.headers, len(body), body)
            if self.is_behind:  # the next request waits until this answer is read
                self._drained = self._loop.create_future()
                await self._drained
        except ConnectionError:
            self.drop()
        except Exception:
            log.LOGGER.exception("internal error")
            self.drop()
        finally:
            self._task = None
            self._requests.popleft()
            if self._transport is not None and not self._transport.is_closing():
                self._after(self._transport, request)

    def _after(self, transport: asyncio.Transport, request: ClientRequest) -> None:
        """The answer has ended: waits for the next request, or closes the connection."""
        if self._requests and request.keep_alive:
            self._next()
        elif request.keep_alive and not self.connections.closing:
            self.connections.set_waiting(self, True)
        elif request.body.is_whole:
            transport.close()
        else:  # the client may read only after it has sent everything
            self._deaf = True
            transport.write_eof()
            self._loop.call_later(LINGER_S, self.drop)
        self.read_or_pause()

    def read_or_pause(self) -> None:
        """Takes nothing from the socket while a body is full or too many requests are ahead."""
        full = any(request.body.is_full for request in self._requests)
        pause = not self._deaf and (full or len(self._requests) > MOST_AHEAD)
        if self._transport is None or pause is self._paused:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


def _judge(request: ClientRequest, version: str) -> None:
    """Reads from the head how its body is framed. Raises RouterError."""
    headers = request.headers
    request.is_http11 = version == "1.1"
    encoding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if version not in ("1.0", "1.1"):
        raise errors.invalid("Only versions 1.0 and 1.1 of HTTP are spoken here.")
    if request.method == "CONNECT" or not request.target.startswith((b"/", b"*")):
        raise errors.invalid("The request's target must be a path.")
    if encoding and (encoding.lower() != b"chunked" or not request.is_http11):
        raise errors.invalid("The only Transfer-Encoding is chunked.")
    request.content_length = int(length) if length else None
    request.has_body = bool(encoding or request.content_length)


def _head_too_long() -> RouterError:
    text = (
        f"The request's line or a header is longer than {MAX_LINE_BYTES} bytes, all together than "
        f"{MAX_HEAD_BYTES} bytes, or there are more than {MAX_HEADERS} headers."
    )
    return errors.invalid(text, 431)
