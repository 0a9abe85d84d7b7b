"""One request on one upstream: sends it, brings the answer back, tells the desk how it went.

Whatever fails before the first byte has reached the client is returned as `Failed`, to be tried
elsewhere; whatever fails later ends the client's answer in a way it can tell from a good end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from router.desk import Desk
from router.http.exchange import ClientGoneError, Exchange, Failed
from router.metrics import Metrics
from router.rules import errors, headers
from router.rules.errors import Problem
from router.rules.sse import whole_events
from router.rules.ticket import Outcome, State, Ticket, outcome_of
from router.rules.upstream import Upstream

# Answers that are no event stream are held back up to this size, so that a body that breaks off
# can be tried elsewhere instead of reaching the client in pieces.
HOLD_BYTES = 1 << 20
_OWN_HEADERS = ("Content-Type", "User-Agent", "Accept", "Accept-Encoding")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One upstream's try at an exchange; `clock` ends it when a side is silent for too long."""

    x: Exchange
    ticket: Ticket
    upstream: Upstream
    clock: asyncio.Timeout
    answer: aiohttp.ClientResponse

    def headers(self) -> CIMultiDict[str]:
        return headers.to_client(self.answer.headers, self.x.request_id, self.upstream.url)


def _everything(data: bytes) -> tuple[bytes, bytes]:
    return data, b""


class Relay:
    """Moves requests and answers between clients and upstreams."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        desk: Desk,
        metrics: Metrics,
        *,
        first_byte_limit_s: float,
        idle_s: float,
        drop_authorization: bool,
    ) -> None:
        self._session = session
        self._desk = desk
        self._metrics = metrics
        self._first_byte_limit_s = first_byte_limit_s
        self._idle_s = idle_s
        self._drop_authorization = drop_authorization

    async def attempt(
        self, x: Exchange, ticket: Ticket, upstream: Upstream
    ) -> web.StreamResponse | Failed:
        """Runs a placed request; the place is free again on return, and as soon as the upstream is
        done. Raises ClientGoneError."""
        url = URL(upstream.url + x.request.rel_url.raw_path_qs, encoded=True)
        sent = headers.to_upstream(
            x.request.headers,
            x.request_id,
            upstream.spec.key,
            drop_authorization=self._drop_authorization,
        )
        try:
            async with (
                asyncio.timeout(self._first_byte_limit_s) as clock,
                self._session.request(
                    x.request.method,
                    url,
                    data=x.body,
                    headers=sent,
                    skip_auto_headers=_OWN_HEADERS,
                    allow_redirects=False,
                ) as answer,
            ):
                a = _Attempt(x, ticket, upstream, clock, answer)
                if answer.content_type == "text/event-stream" and answer.status < 400:
                    return await self._flow(a, whole_events, b"")
                return await self._whole(a)
        except ClientGoneError:
            raise
        except TimeoutError as error:
            if x.writing:
                raise ClientGoneError from None
            what = "was silent for too long"
            if isinstance(error, aiohttp.ServerTimeoutError):  # of the connection
                return await self._failed(x, ticket, upstream, what, 502, Outcome.UNREACHABLE)
            # a long answer takes long, and a deferred one may be paused; a stream that others
            # wait for must go on
            stalled = x.sent is not None and not ticket.deferred
            outcome = Outcome.FAILURE if stalled else Outcome.SLOW
            return await self._failed(x, ticket, upstream, what, 504, outcome)
        except (aiohttp.ClientError, OSError) as error:
            what = f"failed: {error or type(error).__name__}"
            reached = not isinstance(error, aiohttp.ClientConnectorError)
            outcome = Outcome.FAILURE if reached else Outcome.UNREACHABLE
            return await self._failed(x, ticket, upstream, what, 502, outcome)

    async def _whole(self, a: _Attempt) -> web.StreamResponse | Failed:
        """An answer that is held back until it is complete, or too long for that."""
        body = b""
        async for chunk in a.answer.content.iter_any():
            if not body:
                self._first_byte(a)
            body += chunk
            a.clock.reschedule(self._desk.now() + self._idle_s)
            if len(body) > HOLD_BYTES:
                return await self._flow(a, _everything, body)
        if not body:
            self._first_byte(a)
        outcome = outcome_of(a.answer.status)
        self._done(a, outcome)
        a.x.begun_s = self._desk.now() - a.x.started
        response = web.Response(status=a.answer.status, body=body, headers=a.headers())
        if outcome is Outcome.SUCCESS:
            return response
        return Failed(f"{a.upstream.url} answered {a.answer.status}", response)

    async def _flow(
        self, a: _Attempt, split: Callable[[bytes], tuple[bytes, bytes]], held: bytes
    ) -> web.StreamResponse:
        """An answer that is passed on as it comes, as far as `split` lets it; `held` has come."""
        began = bool(held)
        while True:
            ready, held = split(held)
            if ready:
                await self._begin(a)
                await self._write(a.x, ready)
            chunk = await a.answer.content.readany()
            if not chunk:
                break
            if not began:
                began = True
                self._first_byte(a)
            a.clock.reschedule(self._desk.now() + self._idle_s)
            held = held + chunk if held else chunk
        self._done(a, outcome_of(a.answer.status))
        await self._begin(a)
        if held:
            await self._write(a.x, held)
        return await self._end(a.x)

    async def _failed(
        self,
        x: Exchange,
        ticket: Ticket,
        upstream: Upstream,
        what: str,
        status: int,
        outcome: Outcome,
    ) -> web.StreamResponse | Failed:
        if ticket.state is State.PLACED:
            self._desk.release(ticket, outcome)
        reason = f"{upstream.url} {what}"
        problem = errors.upstream_failed(f"The upstream {reason}.", status)
        if x.sent is None:
            response = errors.response(problem, x.request.path)
            response.headers["X-Request-Id"] = x.request_id
            response.headers["X-Upstream-Origin"] = upstream.url
            return Failed(reason, response)
        x.broken = reason
        self._metrics.broken.labels(upstream.url, x.model).inc()
        return await self.break_off(x, problem)

    async def break_off(self, x: Exchange, problem: Problem) -> web.StreamResponse:
        """Ends an answer that has begun: an error event, and no [DONE], on an event stream; a
        connection closed before the body's end otherwise."""
        assert x.sent is not None
        if x.sent.content_type != "text/event-stream":
            if x.request.transport is not None:
                x.request.transport.abort()
            raise ClientGoneError
        try:
            async with asyncio.timeout(self._idle_s):
                event = b"data: " + errors.body_of(problem, x.request.path) + b"\n\n"
                await self._write(x, event)
                return await self._end(x)
        except TimeoutError:
            raise ClientGoneError from None

    def _first_byte(self, a: _Attempt) -> None:
        self._desk.began(a.ticket)
        a.x.first_byte_s = a.x.upstream_s = self._desk.now() - a.ticket.placed_at
        seconds = self._metrics.first_byte_seconds.labels(a.upstream.url, a.x.model)
        seconds.observe(a.x.first_byte_s)

    def _done(self, a: _Attempt, outcome: Outcome) -> None:
        if a.x.sent is None:
            a.x.upstream_s = self._desk.now() - a.ticket.placed_at
        pause_s = None
        if outcome is Outcome.BUSY:
            pause_s = headers.retry_after_s(a.answer.headers)
        self._desk.release(a.ticket, outcome, pause_s)

    async def _begin(self, a: _Attempt) -> None:
        """Sends status and headers, if that is still to be done."""
        if a.x.sent is not None:
            return
        a.x.begun_s = self._desk.now() - a.x.started
        a.x.sent = web.StreamResponse(status=a.answer.status, headers=a.headers())
        a.x.sent.content_length = a.answer.content_length
        await self._to_client(a.x, a.x.sent.prepare(a.x.request))

    async def _write(self, x: Exchange, data: bytes) -> None:
        assert x.sent is not None
        await self._to_client(x, x.sent.write(data))

    async def _end(self, x: Exchange) -> web.StreamResponse:
        assert x.sent is not None
        await self._to_client(x, x.sent.write_eof())
        return x.sent

    @staticmethod
    async def _to_client(x: Exchange, writing: Awaitable[object]) -> None:
        """Tells a client that is gone or slow from an upstream that is."""
        x.writing = True
        try:
            await writing
        except OSError:
            raise ClientGoneError from None
        x.writing = False
