"""Runs a placed request on its upstream: holds the answer back or passes it on, and reports its end
to the dispatcher.

A failure before the first byte reaches the client is returned as `Failed`, so that the request can
be retried on another server. A later failure ends the client's answer in a recognisable way.
"""

from router.dispatching import AsyncDispatcher
from router.http.exchange import Failed, ProxiedRequest
from router.http.forward import Forwarder, Passage, UpstreamFailedError
from router.metrics import Metrics
from router.rules.buffers import BufferLimit
from router.rules.load import HEADER as LOAD_HEADER
from router.rules.load import usage_in
from router.rules.messages import errors, headers
from router.rules.messages.errors import Response
from router.rules.request import AttemptEnd, RequestState, RoutedRequest, outcome_of
from router.rules.upstream import Upstream

# Answers other than event streams are held back up to this size. If one breaks off, the request can
# be retried elsewhere, since the client has not seen a part of the answer.
HOLD_BYTES = 1 << 20
# The end of an answer, in which its usage is looked for.
TAIL_BYTES = 2048
EVENT = b"data:"  # counted without parsing


class Relay:
    """Relays the answers of inference requests."""

    def __init__(
        self,
        forwarder: Forwarder,
        dispatcher: AsyncDispatcher,
        metrics: Metrics,
        buffers: BufferLimit,
        *,
        first_byte_limit_s: float,
    ) -> None:
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._buffers = buffers
        self._first_byte_limit_s = first_byte_limit_s

    async def attempt(
        self, x: ProxiedRequest, routed: RoutedRequest, upstream: Upstream
    ) -> Response | Failed | None:
        """Runs a placed request. Frees its place as soon as the upstream is done. Returns the
        answer, unless it was passed on. Raises ClientGoneError."""
        limit_s = self._first_byte_limit_s
        try:
            async with self._forwarder.send(x, upstream, x.body, limit_s) as passage:
                if passage.is_stream():
                    await self._flow(passage, routed)
                    return None
                return await self._whole(passage, routed)
        except UpstreamFailedError as failure:
            if routed.state is RequestState.PLACED:
                self._dispatcher.release(routed, failure.outcome)
            if not x.request.status:
                response = errors.response(failure.problem, x.request.path)
                response.headers.append((b"X-Request-Id", x.request_id.encode()))
                return Failed(str(failure), response)
            x.broken = str(failure)
            self._metrics.broken.labels(upstream.url, x.model).inc()
            await self._forwarder.break_off(x, failure.problem)
            return None

    async def _whole(self, passage: Passage, routed: RoutedRequest) -> Response | Failed | None:
        """Holds an answer back until it is complete; passes it on as it arrives if it is long."""
        x, body = passage.x, b""
        outcome = outcome_of(passage.answer.status)
        if outcome is AttemptEnd.REFUSED:  # a server may send its body late
            self._first_byte(passage, routed)
            self._done(passage, routed, outcome)
        while chunk := await passage.read():
            if not body:
                self._first_byte(passage, routed)
            body += chunk
            if len(body) > HOLD_BYTES or not self._buffers.take(x, len(chunk)):
                await self._flow(passage, routed, body)
                return None
        if not body:
            self._first_byte(passage, routed)
        self._done(passage, routed, outcome, body)
        x.begun_s = self._dispatcher.now() - x.started
        response = Response(passage.answer.status, body, passage.headers())
        if outcome in (AttemptEnd.SUCCESS, AttemptEnd.REFUSED):
            return response
        return Failed(f"{passage.upstream.url} answered {passage.answer.status}", response)

    async def _flow(self, passage: Passage, routed: RoutedRequest, came: bytes = b"") -> None:
        """Passes an answer on as it arrives. `came`: bytes that have arrived already."""
        began, rest, tail = bool(came), b"", b""
        while chunk := came or await passage.read():
            came = b""
            if not began:
                began = True
                self._first_byte(passage, routed)
            ready, rest = passage.split(rest + chunk)
            if ready:
                routed.work.proceed(ready.count(EVENT))
                tail = (tail + ready)[-TAIL_BYTES:]
                await passage.write(ready)
        self._done(passage, routed, outcome_of(passage.answer.status), tail + rest)
        await passage.write(rest)
        await passage.end()

    def _first_byte(self, passage: Passage, routed: RoutedRequest) -> None:
        if routed.state is not RequestState.PLACED:
            return
        x = passage.x
        self._dispatcher.began(routed, passage.answer.headers.get(LOAD_HEADER, ""))
        x.first_byte_s = x.upstream_s = self._dispatcher.now() - routed.placed_at
        seconds = self._metrics.first_byte_seconds.labels(routed.placed_on().url, x.model)
        seconds.observe(x.first_byte_s)

    def _done(
        self, passage: Passage, routed: RoutedRequest, outcome: AttemptEnd, came: bytes = b""
    ) -> None:
        """`came`: the answer, or its end."""
        if routed.state is not RequestState.PLACED:
            return
        if not passage.x.request.status:
            passage.x.upstream_s = self._dispatcher.now() - routed.placed_at
        pause_s = None
        if outcome is AttemptEnd.BUSY:
            pause_s = headers.retry_after_s(passage.answer.headers)
        self._dispatcher.release(routed, outcome, pause_s, usage_in(came[-TAIL_BYTES:]))
