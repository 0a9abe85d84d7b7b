"""Handles requests that upstreams answer: reads, queues, forwards, retries, answers, and keeps what
is told of each that has ended: its trace, its line of the record, metrics, log."""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic, time_ns

from router import log
from router.config import RouterConfig, aliased
from router.http import jobs
from router.http.exchange import Attempt, Failed, Forwarder, ProxiedRequest
from router.http.server import ClientGoneError, ClientRequest
from router.rules.load import RequestWork
from router.rules.messages import errors, headers
from router.rules.messages.errors import Response, RouterError
from router.rules.messages.request_body import (
    RequestBody,
    parse_body,
    prefixes,
    priority_in,
    renamed,
)
from router.rules.request import NoPlace, RoutedRequest
from telemetry.journal import Journal
from telemetry.tracing import Traced, Tracing
from web.requests import bearer_key, is_valid, request_id

BACK_OFF_S = 0.05
MAX_BACK_OFF_S = 1.0

ENGINE = re.compile("/v1/engines/(.+)/completions")
# TGI's clients send these names to a server of one model.
PLACEHOLDERS = frozenset({"tgi", "dummy"})

Answering = Callable[[ProxiedRequest], Awaitable[Response | None]]


def key_of(request: ClientRequest) -> bytes:
    """The request's bearer token, whose bytes may be any."""
    return bearer_key(request.headers.text(b"authorization")).encode(errors="surrogateescape")


def holds_key(request: ClientRequest, keys: tuple[str, ...]) -> bool:
    return is_valid(key_of(request), keys)


@dataclass(slots=True, eq=False)
class Proxy:
    """Handles every request that goes to an upstream."""

    _config: RouterConfig
    _with: Forwarder
    _journal: Journal | None
    _tracing: Tracing | None
    _aliases: dict[str, list[str]] = field(default_factory=dict)
    _running: set[ProxiedRequest] = field(default_factory=set)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)  # a request, while it drains
    draining: bool = False
    _stopping: bool = False

    def __post_init__(self) -> None:
        for name, model in map(aliased, self._config.alias):
            self._aliases.setdefault(name, []).append(model)

    async def drain(self, timeout_s: float, grace_s: float) -> None:
        """Refuses new requests and lets accepted ones finish. At the limit it ends the rest, within
        `grace_s`: streams that have begun get an error event."""
        self.draining = True
        log.event(logging.INFO, "draining", running=len(self._running))
        await self._idle(timeout_s)
        if self._running:
            log.event(logging.WARNING, "drain limit reached", running=len(self._running))
            self._stopping = True
            for x in self._running:
                x.request.connection.cancel()
            await self._idle(grace_s)
        log.event(logging.INFO, "stopped", running=len(self._running))

    async def _idle(self, limit_s: float) -> None:
        """Returns when no request runs any more, or at the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._running:
                    self._ended.clear()
                    await self._ended.wait()

    async def handle(self, answering: Answering, request: ClientRequest) -> Response | None:
        """Answers one request in the way of `infer`, `relay` or `tokenize`, whatever happens. If
        the client leaves, its place and its memory are freed."""
        given = request.headers.text(b"x-request-id")
        x = ProxiedRequest(request, monotonic(), request_id(given, prefix="req-"))
        if self._tracing is not None:
            sent = {name.decode("latin-1"): request.headers.text(name) for name in request.headers}
            x.trace = self._tracing.serve(request.method, sent, time_ns())
        self._running.add(x)
        status = 499  # nginx logs this for a client that left
        try:
            if self.draining:
                error = errors.unavailable("The router is shutting down.", "shutting_down")
                error.headers["Connection"] = "close"
                raise error
            if self._config.api_keys and not holds_key(request, self._config.api_keys):
                raise errors.no_key("A valid API key is required.")
            response = await answering(x)
            status = response.status if response is not None else request.status
            return response
        except RouterError as refused:
            status = refused.status
            return x.refusal(refused)
        except ClientGoneError:
            self._with.metrics.departed.inc()
            raise
        except asyncio.CancelledError:
            if not self._stopping:
                self._with.metrics.departed.inc()
                raise
            status = 503
            stopped = errors.unavailable("The router was shut down.", "shutting_down")
            return self._abandon(x, stopped)
        except Exception:
            status = 500
            log.LOGGER.exception("internal error", extra={"fields": {"request": x.request_id}})
            return self._abandon(x, errors.failed("The router failed.", 500, "internal_error"))
        finally:
            self._running.discard(x)
            if self.draining:
                self._ended.set()
            self._with.buffers.release_all(x)
            now = monotonic()
            if x.routed is not None:
                self._with.dispatcher.leave(x.routed, now)
            self._report(x, status, now)

    def _abandon(self, x: ProxiedRequest, error: RouterError) -> Response | None:
        """Sends an error instead of the answer, or at the end of an answer that has begun."""
        if not x.request.status:
            return x.refusal(error)
        x.break_off(error)
        return None

    # --- the ways of answering -----------------------------------------------------------------

    async def relay(self, x: ProxiedRequest) -> Response | None:
        """A request about files, batches or stored responses."""
        upstream = jobs.choose(self._config, self._with.dispatcher.fleet, x.request, monotonic())
        body = x.request.body if x.request.has_body else bytearray()
        result = await Attempt(self._with, x, upstream).run(body, self._config.stream_idle)
        return result.response if isinstance(result, Failed) else result

    async def tokenize(self, x: ProxiedRequest) -> Response | None:
        """A text that is to become tokens, or the reverse: takes no place on an upstream, since it
        runs no inference, and does not wait for one."""
        await self._read(x)
        fleet, now = self._with.dispatcher.fleet, monotonic()
        having = fleet.serving(x.model)
        if not having and fleet.complete():
            raise errors.unknown_model(x.model, list(fleet.models()))
        result: Failed | Response | None = None
        idle_s = self._config.stream_idle
        usable = [upstream for upstream in having if upstream.usable(now)]
        for upstream in sorted(usable, key=lambda upstream: upstream.in_flight):
            result = await Attempt(self._with, x, upstream).run(x.body, idle_s)
            if not isinstance(result, Failed):
                return result
        if isinstance(result, Failed):
            return result.response
        raise errors.unavailable(f"No upstream with {x.model} is ready.")

    async def infer(self, x: ProxiedRequest) -> Response | None:
        body = await self._read(x)
        routed = x.routed = self._routed(x, body)
        failed: Failed | None = None
        limit_s = self._config.timeout / 1000
        while True:
            await self._with.dispatcher.place(routed)
            x.limits = self._with.dispatcher.minutes.headers(routed.client, monotonic())
            if routed.refusal is not None:
                # the failure of an attempt explains more to the client than the refusal
                if failed is not None:
                    return failed.response
                raise self._explain(routed)
            upstream = routed.placed_on()
            result = await Attempt(self._with, x, upstream).run(x.body, limit_s)
            if not isinstance(result, Failed):
                return result
            log.event(logging.INFO, "attempt failed", request=x.request_id, reason=result.reason)
            if not self._with.dispatcher.may_retry(routed, monotonic()):
                return result.response
            failed = result
            self._with.metrics.retries(upstream.url, x.model).inc()
            back_off_s = min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** (len(routed.tried) - 1))
            await asyncio.sleep(back_off_s * random.uniform(0.5, 1.5))

    def _routed(self, x: ProxiedRequest, body: RequestBody) -> RoutedRequest:
        sent = x.request.headers
        # clients of one address differ only in a key that was checked
        key = key_of(x.request) if self._config.api_keys else b""
        client = f"{key!r}" if key else x.request.connection.remote or "unknown"
        priority, user = 0, ""
        if self._config.queue_order == "fair":
            asked = priority_in(body.priority)
            if asked is None:
                asked = priority_in(sent.get(b"x-priority", b"")) or 0
            priority = max(asked, self._config.max_priority)
            user = client if key else (sent.text(b"x-user-id") or body.user_name or client)[:256]
        beginnings: Sequence[int] = ()
        if self._config.policy == "prefix":
            session = sent.get(b"x-session-id", b"")
            beginnings = prefixes(session or body.session, body.prompt)
        previous, prompt, only = body.previous, body.prompt, None
        if previous:
            only = jobs.keeper(self._config, self._with.dispatcher.fleet, previous)
        return RoutedRequest(
            x.model,
            body.deferred,
            beginnings,
            only,
            client,
            body.is_repeatable(x.request.path),
            priority,
            user,
            RequestWork(len(prompt), body.max_tokens),
        )

    # --- the body --------------------------------------------------------------------------------

    async def _read(self, x: ProxiedRequest) -> RequestBody:
        """Reads body and model. Raises RouterError."""
        if not headers.is_plain(x.request.headers):
            raise errors.invalid("Compressed request bodies are not accepted.", 415)
        await self._read_body(x)
        try:
            body = parse_body(x.body)
        except ValueError as error:
            raise errors.invalid(str(error)) from None
        x.openai = x.request.path == "/tokenize" and not body.in_tgis_field
        model = body.model or self._named(x.request)
        if model in PLACEHOLDERS and len(known := self._with.dispatcher.fleet.models()) == 1:
            model = next(iter(known))
        x.model = self.model_for(model)
        if x.model != model and body.model:
            x.body = renamed(x.body, x.model)
        return body

    async def _read_body(self, x: ProxiedRequest) -> None:
        """Reads the body as it arrives, within the limits of one body and of all bodies held."""
        limit, body = self._config.max_body_bytes, x.request.body
        announced = x.request.content_length or 0

        def too_large() -> RouterError:
            text = f"The body exceeds {limit} bytes (MAX_BODY_BYTES)."
            return errors.invalid(text, 413)

        def take(data: bytes) -> None:
            x.body += data
            if len(x.body) > limit:
                raise too_large()
            if not self._with.buffers.take(x, len(data), max(0, announced - len(x.body))):
                raise errors.buffers_full()

        if announced > limit:
            raise too_large()
        if not self._with.buffers.take(x, 0, announced):
            raise errors.buffers_full()
        try:
            if body.is_whole:
                await body.flow(take)
            else:
                async with asyncio.timeout(self._config.client_idle):
                    await body.flow(take)
        except TimeoutError:
            raise errors.too_slow() from None

    def _named(self, request: ClientRequest) -> str:
        """The model of a request whose body names none. Raises RouterError."""
        if engine := ENGINE.fullmatch(request.path):
            return engine[1]
        if model := request.headers.text(b"x-model") or self._config.default_model:
            return model
        known = list(self._with.dispatcher.fleet.models())
        if len(known) == 1:
            return known[0]
        if not known and not self._with.dispatcher.fleet.complete():
            raise errors.unavailable("No upstream is known yet.")
        available = ", ".join(known) or "none"
        message = f"'model' (or X-Model) is required, all available models: {available}."
        raise errors.invalid(message, 422, "model_required", "model")

    def model_for(self, name: str) -> str:
        """The model of that name, or the one that its aliases name for now."""
        if name not in self._aliases:
            return name
        return self._with.dispatcher.fleet.available([name, *self._aliases[name]], monotonic())

    # --- what is told ------------------------------------------------------------------------

    def _explain(self, routed: RoutedRequest) -> RouterError:
        reason, dispatcher = routed.refusal, self._with.dispatcher
        self._with.metrics.refused(reason.value if reason else "").inc()
        if routed.over_limit is not None:
            return errors.over_limit(routed.over_limit)
        if reason is NoPlace.UNKNOWN_MODEL:
            return errors.unknown_model(routed.model, list(dispatcher.fleet.models()))
        if reason is NoPlace.QUEUE_FULL:
            wait_s = dispatcher.longest_wait_s(routed.model, monotonic())
            return errors.queue_full(routed.model, self._config.max_queue, wait_s, routed.deferred)
        if reason is NoPlace.TIMEOUT:
            message = "Timeout waiting for a free upstream (TIMEOUT), try again later."
            return errors.unavailable(message, "timeout")
        message = f"No upstream with {routed.model} became ready in time (WAIT_FOR)."
        return errors.unavailable(message)

    def _report(self, x: ProxiedRequest, status: int, now: float) -> None:
        routed = x.routed
        upstream = routed.upstream.url if routed is not None and routed.upstream else None
        tried = len(routed.tried) if routed is not None else 0
        queued_s = routed.queued_s if routed is not None else 0.0
        if x.trace is not None:
            _end_trace(x, x.trace, status, queued_s, tried)
        if self._journal is not None:
            record = {
                "type": "routed",
                "request_id": x.request_id,
                "path": x.request.path,
                "start_s": x.started,
                "queued_s": queued_s,
                "end_s": now if x.passed_s is None else x.passed_s,
                "status": status,
                "attempts": x.attempts,
            }
            self._journal.write(record)
        if upstream is not None:
            self._with.metrics.requests(upstream, x.model, str(status)).inc()
            self._with.metrics.queue_seconds(x.model).observe(queued_s)
            if x.begun_s and tried == 1:
                added_s = max(0.0, x.begun_s - queued_s - x.upstream_s)
                self._with.metrics.added_seconds.observe(added_s)
        level = logging.WARNING if status >= 500 or x.broken else logging.DEBUG
        if log.LOGGER.isEnabledFor(level):
            log.event(
                level,
                "request",
                request=x.request_id,
                path=x.request.path,
                model=x.model,
                upstream=upstream,
                status=status,
                attempts=tried,
                queued_s=round(queued_s, 4),
                first_byte_s=round(x.first_byte_s, 4),
                total_s=round(now - x.started, 4),
                broken=x.broken,
            )


def _end_trace(x: ProxiedRequest, trace: Traced, status: int, queued_s: float, tried: int) -> None:
    trace.span.update_name(f"{x.request.method} {x.request.path}")
    attributes: dict[str, str | int | float] = {
        "http.request.method": x.request.method,
        "url.path": x.request.path,
        "http.response.status_code": status,
        "request.id": x.request_id,
        "gen_ai.request.model": x.model,
        "queue_time": queued_s,
        "attempts": tried,
    }
    trace.end(time_ns(), attributes, error=x.broken or None)
