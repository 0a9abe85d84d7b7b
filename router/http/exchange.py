"""A client's request in the data plane, and an attempt to have an upstream answer it.

An answer is held back until it is complete, or passed on as it arrives if it is a stream or long. A
failure before the first byte reaches the client leaves it to the caller to try elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from router.dispatching import AsyncDispatcher
from router.http.body import Body
from router.http.client import Pool, UnreachableError, UpstreamAnswer
from router.http.server import ClientGoneError, ClientRequest
from router.metrics import Metrics
from router.rules.load import usage_in
from router.rules.messages import errors, headers
from router.rules.messages.errors import Response, RouterError
from router.rules.messages.headers import Headers, Pairs, encoded
from router.rules.messages.sse import is_whole, whole_events
from router.rules.request import AttemptEnd, RequestState, RoutedRequest, outcome_of
from router.rules.upstream import RESPONSES, Upstream, mark_of
from telemetry.tracing import Traced
from web.requests import HEADER

# Answers other than event streams are held back up to this size. If one breaks off, the request can
# be retried elsewhere, since the client has not seen a part of the answer.
HOLD_BYTES = 1 << 20
# The end of an answer, in which its usage is looked for.
TAIL_BYTES = 2048
EVENT = b"data:"  # counted without parsing
LAST_EVENT = b"data: [DONE]"


@dataclass(slots=True, eq=False)
class ProxiedRequest:
    """A client's request and its state. `openai`: its errors are OpenAI's, whatever the path."""

    request: ClientRequest
    started: float
    request_id: str
    model: str = ""
    openai: bool = False
    limits: dict[str, str] = field(default_factory=dict)  # headers that tell them
    body: bytearray = field(default_factory=bytearray)
    buffered_bytes: int = 0  # of the body, and of an answer that is held back
    routed: RoutedRequest | None = None  # None if it needs no place on an upstream
    takes_events: bool = False  # its answer is a stream that an error event may end
    broken: str = ""
    torn: bool = False  # a part of an event was passed on
    first_byte_s: float = 0.0
    # `begun_s`: from arrival until the answer could be sent; `upstream_s`: the upstream's share.
    upstream_s: float = 0.0
    begun_s: float = 0.0
    passed_s: float | None = None  # when the last piece of the answer was passed on
    # upstreams, and from when until when they had the request
    attempts: list[tuple[str, float, float]] = field(default_factory=list)
    trace: Traced | None = None

    def refusal(self, error: RouterError) -> Response:
        response = errors.response(error, self.request.path, openai=self.openai)
        response.headers += encoded({HEADER: self.request_id, **self.limits})
        return response

    def break_off(self, error: RouterError) -> None:
        """Ends an answer that has begun. An event stream gets an error event and no [DONE]; any
        other connection is closed before the body's end. May raise ClientGoneError."""
        if not self.takes_events or self.torn:
            self.request.connection.drop()
            raise ClientGoneError
        self.request.write(b"data: " + errors.body_of(error, self.request.path) + b"\n\n")
        self.request.end()


@dataclass(slots=True)
class BufferLimit:
    """Limits the bytes of all bodies together, so that many large ones cannot fill the memory."""

    limit: int
    total: int = 0

    def take(self, x: ProxiedRequest, more: int, announced: int = 0) -> bool:
        """Counts bytes as those of `x`. Returns False and counts nothing if they, and those that
        were announced, do not fit."""
        if self.total + more + announced > self.limit:
            return False
        self.total += more
        x.buffered_bytes += more
        return True

    def release_all(self, x: ProxiedRequest) -> None:
        self.total -= x.buffered_bytes
        x.buffered_bytes = 0


class Failed(NamedTuple):
    """A failed attempt that may be repeated elsewhere. `reason`: for the log; it names the
    upstream. `response`: for the client if it is not repeated."""

    reason: str
    response: Response


@dataclass(frozen=True, slots=True)
class Forwarder:
    """What all requests to upstreams use."""

    pool: Pool
    dispatcher: AsyncDispatcher
    metrics: Metrics
    buffers: BufferLimit
    drop_authorization: bool


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on one upstream. The place that it holds there is given back as soon as the
    upstream is done."""

    _with: Forwarder
    _x: ProxiedRequest
    _upstream: Upstream
    _answer: UpstreamAnswer | None = None
    _is_stream: bool = False
    _has_begun: bool = False
    _held: bytearray | None = None  # of an answer that is not passed on yet
    _rest: bytes = b""  # the beginning of an event
    _tail: bytes = b""

    async def run(self, body: bytearray | Body, limit_s: float) -> Response | Failed | None:
        """Returns the answer, whose body must begin within `limit_s`, unless it was passed on. A
        body that is still arriving is passed on as it arrives; `limit_s` then limits each pause.

        Raises ClientGoneError."""
        x, start_s, url = self._x, monotonic(), self._upstream.url
        try:
            if x.trace is None:
                return await self._run(body, limit_s, [])
            with x.trace.call("attempt", {"server.address": url}) as traced:
                return await self._run(body, limit_s, encoded(traced))
        except ClientGoneError:
            raise
        except TimeoutError:
            if x.request.connection.is_behind:
                raise ClientGoneError from None
            if isinstance(body, Body) and not body.is_whole and not body.is_blocked:
                return self._failed(AttemptEnd.DEPARTED, "its body is late", errors.too_slow())
            # A long response may begin late, and a server may pause a deferred one. Any other
            # stream that has begun must continue.
            deferred = x.routed is not None and x.routed.deferred
            stopped = x.request.status and not deferred
            outcome = AttemptEnd.FAILURE if stopped else AttemptEnd.SLOW
            silent = errors.failed("The server was silent for too long.", 504)
            return self._failed(outcome, f"{url} was silent for too long", silent)
        except RouterError as error:  # the client's body broke off
            return self._failed(AttemptEnd.DEPARTED, error.message, error)
        except OSError as error:
            outcome, message = AttemptEnd.FAILURE, "failed before its response was complete."
            if isinstance(error, UnreachableError):
                outcome, message = AttemptEnd.UNREACHABLE, "could not be reached."
            reason = f"{url} failed: {error or type(error).__name__}"
            return self._failed(outcome, reason, errors.failed(f"The server {message}"))
        finally:
            if self._answer is not None:
                x.request.connection.source = None
                self._with.pool.done(self._answer)
            end_s = x.passed_s if x.passed_s is not None else monotonic()
            x.attempts.append((url, start_s, end_s))

    async def _run(
        self, body: bytearray | Body, limit_s: float, traced: Pairs
    ) -> Response | Failed | None:
        x, upstream, request = self._x, self._upstream, self._x.request
        sent = headers.to_upstream(
            request.headers,
            x.request_id,
            upstream.spec.key,
            drop_authorization=self._with.drop_authorization,
        )
        if request.path == RESPONSES:
            sent.append((b"X-Upstream-Mark", mark_of(upstream.url).encode()))
        if traced:
            names = {name for name, _ in traced}
            sent = [pair for pair in sent if pair[0].lower() not in names] + traced
        answer = self._answer = await self._with.pool.ask(
            request.method,
            upstream.url,
            request.target,
            sent,
            body,
            request.content_length,
            limit_s,
        )
        request.connection.source = answer.connection
        outcome = outcome_of(answer.status)
        self._is_stream = answer.media_type == "text/event-stream" and answer.status < 400
        # the events of a compressed stream cannot be separated
        x.takes_events = self._is_stream and headers.is_plain(answer.headers)
        if not self._is_stream:
            self._held = bytearray()
            if outcome is AttemptEnd.REFUSED:  # a server may send its body late
                self._first_byte()
                self._done(outcome, b"")
        await answer.body.flow(self._take)
        if self._held is not None:
            if not self._has_begun:
                self._first_byte()
            held = bytes(self._held)
            self._done(outcome, held[-TAIL_BYTES:])
            x.begun_s = monotonic() - x.started
            response = Response(answer.status, held, self._headers(answer))
            if outcome in (AttemptEnd.SUCCESS, AttemptEnd.REFUSED):
                return response
            return Failed(f"{upstream.url} answered {answer.status}", response)
        self._done(outcome, self._tail + self._rest)
        if self._rest or not request.status:
            self._write(self._rest)
        x.passed_s = answer.connection.active_s
        request.end()
        return None

    def _take(self, data: bytes) -> None:
        """Called with each piece of the answer's body."""
        if not self._has_begun:
            self._first_byte()
        if self._held is not None:
            self._held += data
            if len(self._held) <= HOLD_BYTES and self._with.buffers.take(self._x, len(data)):
                return
            data, self._held = bytes(self._held), None
        x = self._x
        if x.takes_events:
            data, self._rest = whole_events(self._rest + data)
            x.torn |= not is_whole(data)
            if not data:
                return
        if x.routed is not None:
            x.routed.work.proceed(data.count(EVENT))
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._write(data)

    def _write(self, data: bytes) -> None:
        """Sends status and headers to the client, unless they were sent before, and `data`."""
        x, answer = self._x, self._answer
        if x.request.status:
            x.request.write(data)
        elif answer is not None:
            x.begun_s = monotonic() - x.started
            # an error event may lengthen a stream
            length = None if self._is_stream else answer.content_length
            x.request.begin(answer.status, self._headers(answer), length, data)

    def _headers(self, answer: UpstreamAnswer) -> Pairs:
        """Those of the answer for the client. The router's own limits replace the upstream's."""
        x, shown = self._x, answer.headers
        if x.limits:
            own = {name.lower().encode() for name in x.limits}
            shown = Headers([pair for pair in shown.pairs if pair[0].lower() not in own])
        return headers.to_client(shown, x.request_id, self._upstream.url) + encoded(x.limits)

    def _first_byte(self) -> None:
        self._has_begun = True
        x, routed, answer = self._x, self._x.routed, self._answer
        if routed is None or answer is None or routed.state is not RequestState.PLACED:
            return
        now = monotonic()
        self._with.dispatcher.began(routed, now, answer.headers.text(b"x-engine-load"))
        x.first_byte_s = x.upstream_s = now - routed.placed_at
        self._with.metrics.first_byte_seconds(self._upstream.url, x.model).observe(x.first_byte_s)

    def _done(self, outcome: AttemptEnd, end: bytes) -> None:
        """The upstream has answered; `end`: the last bytes of its answer."""
        x, routed, answer = self._x, self._x.routed, self._answer
        if routed is None or answer is None or routed.state is not RequestState.PLACED:
            return
        now = monotonic()
        if not x.request.status:
            x.upstream_s = now - routed.placed_at
        pause_s = headers.retry_after_s(answer.headers) if outcome is AttemptEnd.BUSY else None
        self._with.dispatcher.release(routed, outcome, now, pause_s, usage_in(end))

    def _failed(self, outcome: AttemptEnd, reason: str, error: RouterError) -> Failed | None:
        """`error`: for the client; it names no address. An answer that has begun is ended in a
        recognisable way, unless it is a stream whose last event has come: it lacks nothing."""
        x, routed = self._x, self._x.routed
        if x.takes_events and self._tail.rstrip().endswith(LAST_EVENT):
            self._done(AttemptEnd.SUCCESS, self._tail)
            x.request.end()
            return None
        if routed is not None and routed.state is RequestState.PLACED:
            self._with.dispatcher.release(routed, outcome, monotonic())
        if routed is None or x.request.status:
            x.broken = reason
        if not x.request.status:
            return Failed(reason, x.refusal(error))
        if routed is not None:
            self._with.metrics.broken(self._upstream.url, x.model).inc()
        x.break_off(error)
        return None
