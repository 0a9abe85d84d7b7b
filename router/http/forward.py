"""Sends a request to an upstream and passes the answer on, for inference and jobs alike.

Distinguishes a client that left from an upstream that failed. Independent of places and retries.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from router.http.connections import set_waiting
from router.http.exchange import Attempt, ClientGoneError, ProxiedRequest
from router.rules import responses
from router.rules.messages import errors, headers
from router.rules.messages.errors import Problem
from router.rules.messages.sse import is_whole, whole_events
from router.rules.request import AttemptEnd
from router.rules.upstream import Upstream

_OWN_HEADERS = ("Content-Type", "User-Agent", "Accept", "Accept-Encoding")
_EVENTS = "text/event-stream"
PIECE_BYTES = 256 * 1024  # a large body is written in pieces of this size


class UpstreamFailedError(Exception):
    """The upstream sent no complete answer. The text names the upstream and is for the log.
    `problem` is for the client and names no address."""

    def __init__(self, reason: str, problem: Problem, outcome: AttemptEnd) -> None:
        super().__init__(reason)
        self.problem = problem
        self.outcome = outcome


@dataclass(slots=True, eq=False)
class Passage:
    """An answer that is passed on. `clock` ends it if a side is silent for more than `idle_s`."""

    x: ProxiedRequest
    upstream: Upstream
    answer: aiohttp.ClientResponse
    clock: asyncio.Timeout
    idle_s: float

    def is_stream(self) -> bool:
        return self.answer.content_type == _EVENTS and self.answer.status < 400

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What may be passed on of bytes that have arrived, and the rest: whole events of a stream,
        unless it is compressed, and everything of another answer."""
        if not self.is_stream() or not headers.is_plain(self.answer.headers):
            return data, b""
        ready, rest = whole_events(data)
        self.x.torn |= not is_whole(ready)
        return ready, rest

    def headers(self) -> CIMultiDict[str]:
        shown = headers.to_client(self.answer.headers, self.x.request_id, self.upstream.url)
        shown.update(self.x.limits)
        return shown

    async def read(self) -> bytes:
        """The bytes of the body that have arrived; empty at its end."""
        chunk = await self.answer.content.readany()
        _put_off(self.clock, self.idle_s)
        return chunk

    async def begin(self) -> None:
        """Sends status and headers to the client, unless they were sent before."""
        x = self.x
        if x.sent is not None:
            return
        x.begun_s = asyncio.get_running_loop().time() - x.started
        x.sent = web.StreamResponse(status=self.answer.status, headers=self.headers())
        if not self.is_stream():  # an error event may lengthen it
            x.sent.content_length = self.answer.content_length
        await _to_client(x, x.sent.prepare(x.request))

    async def write(self, data: bytes) -> None:
        assert self.x.sent is not None
        await _to_client(self.x, self.x.sent.write(data))

    async def end(self) -> web.StreamResponse:
        assert self.x.sent is not None
        await _to_client(self.x, self.x.sent.write_eof())
        return self.x.sent


class Forwarder:
    """Sends clients' requests to upstreams."""

    def __init__(
        self, session: aiohttp.ClientSession, *, idle_s: float, drop_authorization: bool
    ) -> None:
        self._session = session
        self._idle_s = idle_s
        self._drop_authorization = drop_authorization

    @asynccontextmanager
    async def send(
        self,
        x: ProxiedRequest,
        upstream: Upstream,
        body: bytearray | aiohttp.StreamReader,
        limit_s: float,
    ) -> AsyncIterator[Passage]:
        """Sends the request and yields the answer, which must begin within `limit_s`. A body that
        is still arriving is passed on as it arrives; `limit_s` then limits each pause.

        Raises UpstreamFailedError and ClientGoneError, also inside the block."""
        sent = headers.to_upstream(
            x.request.headers,
            x.request_id,
            upstream.spec.key,
            drop_authorization=self._drop_authorization,
        )
        if x.request.path == responses.PATH:
            sent[responses.MARK_HEADER] = responses.mark_of(upstream.url)
        start_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limit_s) as clock, AsyncExitStack() as stack:
                if x.trace is not None:
                    attributes = {"server.address": upstream.url}
                    sent.update(stack.enter_context(x.trace.call("attempt", attributes)))
                data: bytearray | AsyncIterator[bytes | memoryview]
                if not isinstance(body, bytearray):
                    data = _upload(x, body, clock, limit_s)
                    if x.request.content_length is not None:
                        sent["Content-Length"] = str(x.request.content_length)
                elif len(body) > PIECE_BYTES:
                    data = _in_pieces(body)
                    sent["Content-Length"] = str(len(body))
                else:
                    data = body
                async with self._session.request(
                    x.request.method,
                    URL(upstream.url + x.request.rel_url.raw_path_qs, encoded=True),
                    data=data,
                    headers=sent,
                    skip_auto_headers=_OWN_HEADERS,
                    allow_redirects=False,
                ) as answer:
                    yield Passage(x, upstream, answer, clock, self._idle_s)
        except ClientGoneError:
            raise
        except TimeoutError as error:
            if x.writing:
                raise ClientGoneError from None
            if x.uploading:
                raise _bad_upload(errors.too_slow()) from None
            raise _silent(x, upstream, error) from error
        except (aiohttp.ClientError, OSError) as error:
            if x.upload_problem is not None:
                raise _bad_upload(x.upload_problem) from None
            raise _broken(upstream, error) from error
        finally:
            end_s = x.passed_s if x.passed_s is not None else asyncio.get_running_loop().time()
            x.attempts.append(Attempt(upstream.url, start_s, end_s))

    async def relay(
        self,
        x: ProxiedRequest,
        upstream: Upstream,
        body: bytearray | aiohttp.StreamReader,
        limit_s: float,
    ) -> web.StreamResponse | Problem:
        """Sends the request, and passes the answer on as it arrives. Returns a Problem if nothing
        has reached the client. Raises ClientGoneError."""
        try:
            async with self.send(x, upstream, body, limit_s) as passage:
                await passage.begin()
                rest = b""
                while chunk := await passage.read():
                    ready, rest = passage.split(rest + chunk)
                    if ready:
                        await passage.write(ready)
                if rest:
                    await passage.write(rest)
                return await passage.end()
        except UpstreamFailedError as failure:
            x.broken = str(failure)
            if x.sent is None:
                return failure.problem
            return await self.break_off(x, failure.problem)

    async def break_off(self, x: ProxiedRequest, problem: Problem) -> web.StreamResponse:
        """Ends an answer that has begun. An event stream gets an error event and no [DONE]; any
        other connection is closed before the body's end. May raise ClientGoneError."""
        assert x.sent is not None
        is_plain = headers.is_plain(x.sent.headers)
        if x.sent.content_type != _EVENTS or not is_plain or x.torn:
            if x.request.transport is not None:
                x.request.transport.abort()
            raise ClientGoneError
        event = b"data: " + errors.body_of(problem, x.request.path) + b"\n\n"
        try:
            async with asyncio.timeout(self._idle_s):
                await _to_client(x, x.sent.write(event))
                await _to_client(x, x.sent.write_eof())
        except TimeoutError:
            raise ClientGoneError from None
        return x.sent


def _silent(x: ProxiedRequest, upstream: Upstream, error: TimeoutError) -> UpstreamFailedError:
    if isinstance(error, aiohttp.ServerTimeoutError):  # while connecting
        problem = errors.upstream_failed("The server could not be reached in time.")
        reason = f"{upstream.url} could not be reached in time"
        return UpstreamFailedError(reason, problem, AttemptEnd.UNREACHABLE)
    # A long response may begin late, and a server may pause a deferred one. Any other stream that
    # has begun must continue.
    deferred = x.routed is not None and x.routed.deferred
    outcome = AttemptEnd.FAILURE if x.sent is not None and not deferred else AttemptEnd.SLOW
    problem = errors.upstream_failed("The server was silent for too long.", 504)
    return UpstreamFailedError(f"{upstream.url} was silent for too long", problem, outcome)


def _broken(upstream: Upstream, error: aiohttp.ClientError | OSError) -> UpstreamFailedError:
    reason = f"{upstream.url} failed: {error or type(error).__name__}"
    if isinstance(error, aiohttp.ClientConnectorError):
        problem = errors.upstream_failed("The server could not be reached.")
        return UpstreamFailedError(reason, problem, AttemptEnd.UNREACHABLE)
    problem = errors.upstream_failed("The server failed before its response was complete.")
    return UpstreamFailedError(reason, problem, AttemptEnd.FAILURE)


def _bad_upload(problem: Problem) -> UpstreamFailedError:
    return UpstreamFailedError(problem.message, problem, AttemptEnd.DEPARTED)


async def _in_pieces(body: bytearray) -> AsyncIterator[memoryview]:
    """Yields a large body in pieces: the transport would copy a whole body at once, and all other
    requests would wait."""
    with memoryview(body) as view:
        for at in range(0, len(view), PIECE_BYTES):
            yield view[at : at + PIECE_BYTES]


async def _upload(
    x: ProxiedRequest, body: aiohttp.StreamReader, clock: asyncio.Timeout, idle_s: float
) -> AsyncIterator[bytes]:
    while True:
        x.uploading = True
        try:
            chunk = await body.readany()
        except web.RequestPayloadError as error:
            x.upload_problem = errors.broken_body(error)
            raise
        x.uploading = False
        set_waiting(x.request, bool(chunk))
        _put_off(clock, idle_s)
        if not chunk:
            return
        yield chunk


def _put_off(clock: asyncio.Timeout, seconds: float) -> None:
    clock.reschedule(asyncio.get_running_loop().time() + seconds)


async def _to_client(x: ProxiedRequest, writing: Awaitable[object]) -> None:
    """Writes to the client. Sets `writing`, so that a timeout is known to be the client's."""
    x.passed_s = asyncio.get_running_loop().time()
    x.writing = True
    try:
        await writing
    except OSError:
        raise ClientGoneError from None
    x.writing = False
