"""Sends a request to an upstream and passes the answer on, for inference and jobs alike.

Distinguishes a client that left from an upstream that failed. Independent of places and retries.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from router.http.client import Pool, UnreachableError, UpstreamAnswer
from router.http.exchange import Attempt, ProxiedRequest
from router.http.server import ClientGoneError
from router.http.streams import BrokenBodyError, Stream
from router.rules import responses
from router.rules.messages import errors, headers
from router.rules.messages.errors import Problem
from router.rules.messages.headers import Headers, Pairs, encoded
from router.rules.messages.sse import is_whole, whole_events
from router.rules.request import AttemptEnd
from router.rules.upstream import Upstream

_EVENTS = "text/event-stream"


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
    answer: UpstreamAnswer
    clock: asyncio.Timeout
    idle_s: float

    def is_stream(self) -> bool:
        return self.answer.media_type == _EVENTS and self.answer.status < 400

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What may be passed on of bytes that have arrived, and the rest: whole events of a stream,
        unless it is compressed, and everything of another answer."""
        if not self.is_stream() or not headers.is_plain(self.answer.headers):
            return data, b""
        ready, rest = whole_events(data)
        self.x.torn |= not is_whole(ready)
        return ready, rest

    def headers(self) -> Pairs:
        """Those of the answer for the client. The router's own limits replace the upstream's."""
        x, shown = self.x, self.answer.headers
        if x.limits:
            own = {name.lower().encode() for name in x.limits}
            shown = Headers([pair for pair in shown.pairs if pair[0].lower() not in own])
        return headers.to_client(shown, x.request_id, self.upstream.url) + encoded(x.limits)

    async def read(self) -> bytes:
        """The bytes of the body that have arrived; empty at its end."""
        chunk = await self.answer.body.read()
        _put_off(self.clock, self.idle_s)
        return chunk

    async def write(self, data: bytes) -> None:
        """Sends status and headers to the client, unless they were sent before, and `data`."""
        x = self.x
        if x.request.status:
            if data:
                await _to_client(x, x.request.write(data))
            return
        x.begun_s = time.monotonic() - x.started
        is_stream = self.is_stream()
        x.takes_events = is_stream and headers.is_plain(self.answer.headers)
        # an error event may lengthen a stream
        length = None if is_stream else self.answer.content_length
        await _to_client(x, x.request.begin(self.answer.status, self.headers(), length, data))

    async def end(self) -> None:
        await _to_client(self.x, self.x.request.end())


class Forwarder:
    """Sends clients' requests to upstreams."""

    def __init__(self, pool: Pool, *, idle_s: float, drop_authorization: bool) -> None:
        self._pool = pool
        self._idle_s = idle_s
        self._drop_authorization = drop_authorization

    @asynccontextmanager
    async def send(
        self,
        x: ProxiedRequest,
        upstream: Upstream,
        body: bytearray | Stream,
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
            sent.append((b"X-Upstream-Mark", responses.mark_of(upstream.url).encode()))
        start_s = time.monotonic()
        answer: UpstreamAnswer | None = None
        try:
            async with asyncio.timeout(limit_s) as clock, AsyncExitStack() as stack:
                if x.trace is not None:
                    attributes = {"server.address": upstream.url}
                    own = encoded(stack.enter_context(x.trace.call("attempt", attributes)))
                    names = {name for name, _ in own}
                    sent = [pair for pair in sent if pair[0].lower() not in names] + own
                arriving = _upload(x, body, clock, limit_s) if isinstance(body, Stream) else body
                answer = await self._pool.ask(
                    x.request.method,
                    upstream.url,
                    x.request.target,
                    sent,
                    arriving,
                    x.request.content_length,
                )
                yield Passage(x, upstream, answer, clock, self._idle_s)
        except ClientGoneError:
            raise
        except TimeoutError as error:
            if x.writing:
                raise ClientGoneError from None
            if x.uploading:
                raise _bad_upload(errors.too_slow()) from None
            raise _silent(x, upstream) from error
        except OSError as error:
            if isinstance(error, BrokenBodyError):
                raise _bad_upload(errors.broken_body(error)) from None
            raise _broken(upstream, error) from error
        finally:
            if answer is not None:
                self._pool.done(answer)
            end_s = x.passed_s if x.passed_s is not None else time.monotonic()
            x.attempts.append(Attempt(upstream.url, start_s, end_s))

    async def relay(
        self,
        x: ProxiedRequest,
        upstream: Upstream,
        body: bytearray | Stream,
        limit_s: float,
    ) -> Problem | None:
        """Sends the request, and passes the answer on as it arrives. Returns a Problem if nothing
        has reached the client. Raises ClientGoneError."""
        try:
            async with self.send(x, upstream, body, limit_s) as passage:
                await passage.write(b"")
                rest = b""
                while chunk := await passage.read():
                    ready, rest = passage.split(rest + chunk)
                    if ready:
                        await passage.write(ready)
                if rest:
                    await passage.write(rest)
                await passage.end()
        except UpstreamFailedError as failure:
            x.broken = str(failure)
            if not x.request.status:
                return failure.problem
            await self.break_off(x, failure.problem)
        return None

    async def break_off(self, x: ProxiedRequest, problem: Problem) -> None:
        """Ends an answer that has begun. An event stream gets an error event and no [DONE]; any
        other connection is closed before the body's end. May raise ClientGoneError."""
        if not x.takes_events or x.torn:
            x.request.abort()
            raise ClientGoneError
        event = b"data: " + errors.body_of(problem, x.request.path) + b"\n\n"
        try:
            async with asyncio.timeout(self._idle_s):
                await _to_client(x, x.request.write(event))
                await _to_client(x, x.request.end())
        except TimeoutError:
            raise ClientGoneError from None


def _silent(x: ProxiedRequest, upstream: Upstream) -> UpstreamFailedError:
    # A long response may begin late, and a server may pause a deferred one. Any other stream that
    # has begun must continue.
    deferred = x.routed is not None and x.routed.deferred
    outcome = AttemptEnd.FAILURE if x.request.status and not deferred else AttemptEnd.SLOW
    problem = errors.upstream_failed("The server was silent for too long.", 504)
    return UpstreamFailedError(f"{upstream.url} was silent for too long", problem, outcome)


def _broken(upstream: Upstream, error: OSError) -> UpstreamFailedError:
    reason = f"{upstream.url} failed: {error or type(error).__name__}"
    if isinstance(error, UnreachableError):
        problem = errors.upstream_failed("The server could not be reached.")
        return UpstreamFailedError(reason, problem, AttemptEnd.UNREACHABLE)
    problem = errors.upstream_failed("The server failed before its response was complete.")
    return UpstreamFailedError(reason, problem, AttemptEnd.FAILURE)


def _bad_upload(problem: Problem) -> UpstreamFailedError:
    return UpstreamFailedError(problem.message, problem, AttemptEnd.DEPARTED)


async def _upload(
    x: ProxiedRequest, body: Stream, clock: asyncio.Timeout, idle_s: float
) -> AsyncIterator[bytes]:
    while True:
        x.uploading = True
        chunk = await body.read()
        x.uploading = False
        _put_off(clock, idle_s)
        if not chunk:
            return
        yield chunk


def _put_off(clock: asyncio.Timeout, seconds: float) -> None:
    """Not for every piece of a stream: it may end up to a tenth too early."""
    at_s, now_s = clock.when(), asyncio.get_running_loop().time()
    if at_s is None or not now_s + 0.9 * seconds <= at_s <= now_s + seconds:
        clock.reschedule(now_s + seconds)


async def _to_client(x: ProxiedRequest, writing: Awaitable[object]) -> None:
    """Writes to the client. Sets `writing`, so that a timeout is known to be the client's."""
    x.passed_s = time.monotonic()
    x.writing = True
    await writing
    x.writing = False
