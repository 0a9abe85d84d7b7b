"""Handles requests that upstreams answer: reads, queues, forwards, retries, answers, and keeps what
is told of each that has ended: its trace, its line of the record, metrics, log."""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, time_ns

from router import log
from router.config import RouterConfig, aliased
from router.dispatching import AsyncDispatcher
from router.http import jobs
from router.http.body import BrokenBodyError
from router.http.client import Pool
from router.http.exchange import (
    Attempt,
    BufferLimit,
    Failed,
    Forwarder,
    ProxiedRequest,
)
from router.http.server import ClientGoneError, ClientRequest
from router.metrics import Metrics
from router.rules.load import RequestWork
from router.rules.messages import errors, headers
from router.rules.messages.errors import Problem, RefusalError, Response
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


class Proxy:
    """Handles every request that goes to an upstream."""

    def __init__(
        self,
        config: RouterConfig,
        dispatcher: AsyncDispatcher,
        pool: Pool,
        metrics: Metrics,
        buffers: BufferLimit,
        journal: Journal | None,
        tracing: Tracing | None,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._buffers = buffers
        self._journal = journal
        self._tracing = tracing
        self._forwarder = Forwarder(pool, dispatcher, metrics, buffers, bool(config.api_keys))
        self._aliases: dict[str, list[str]] = {}
        for name, model in map(aliased, config.alias):
            self._aliases.setdefault(name, []).append(model)
        self._by_prefix = config.policy == "prefix"
        self._running: set[ProxiedRequest] = set()
        self._idle = asyncio.Event()
        self.draining = False
        self._stopping = False

    @property
    def running(self) -> int:
        """Requests not answered yet."""
        return len(self._running)

    async def idle(self) -> None:
        """Returns when no request runs any more. For draining."""
        while self._running:
            self._idle.clear()
            await self._idle.wait()

    def stop(self) -> None:
        """Ends the running requests; streams that have begun get an error event."""
        self._stopping = True
        for x in self._running:
            x.request.connection.cancel()

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
            self._let_in(request)
            response = await answering(x)
            status = response.status if response is not None else request.status
            return response
        except RefusalError as refused:
            status = refused.problem.status
            return x.refusal(refused.problem)
        except ClientGoneError:
            self._metrics.departed.inc()
            raise
        except asyncio.CancelledError:
            if not self._stopping:
                self._metrics.departed.inc()
                raise
            status = 503
            stopped = errors.unavailable("The router was shut down.", "shutting_down")
            return self._abandon(x, stopped)
        except Exception:
            status = 500
            log.LOGGER.exception("internal error", extra={"fields": {"request": x.request_id}})
            broken = Problem(500, "server_error", "internal_error", "The router failed.")
            return self._abandon(x, broken)
        finally:
            self._running.discard(x)
            if self.draining and not self._running:
                self._idle.set()
            self._buffers.release_all(x)
            now = monotonic()
            if x.routed is not None:
                self._dispatcher.leave(x.routed, now)
            self._report(x, status, now)

    def _let_in(self, request: ClientRequest) -> None:
        if self.draining:
            problem = errors.unavailable("The router is shutting down.", "shutting_down")
            problem.headers["Connection"] = "close"
            raise RefusalError(problem)
        if self._config.api_keys and not holds_key(request, self._config.api_keys):
            raise RefusalError(errors.no_key("A valid API key is required."))

    def _abandon(self, x: ProxiedRequest, problem: Problem) -> Response | None:
        """Sends an error instead of the answer, or at the end of an answer that has begun."""
        if not x.request.status:
            return x.refusal(problem)
        x.break_off(problem)
        return None

    # --- the ways of answering -----------------------------------------------------------------

    async def relay(self, x: ProxiedRequest) -> Response | None:
        """A request about files, batches or stored responses."""
        upstream = jobs.choose(self._config, self._dispatcher.fleet, x.request, monotonic())
        if isinstance(upstream, Problem):
            raise RefusalError(upstream)
        body = x.request.body if x.request.has_body else bytearray()
        result = await Attempt(self._forwarder, x, upstream).run(body, self._config.stream_idle)
        return result.response if isinstance(result, Failed) else result

    async def tokenize(self, x: ProxiedRequest) -> Response | None:
        """A text that is to become tokens, or the reverse: takes no place on an upstream, since it
        runs no inference, and does not wait for one."""
        await self._read(x)
        fleet, now = self._dispatcher.fleet, monotonic()
        having = fleet.serving(x.model)
        if not having and fleet.complete():
            raise RefusalError(errors.unknown_model(x.model, list(fleet.models())))
        result: Failed | Response | None = None
        idle_s = self._config.stream_idle
        usable = [upstream for upstream in having if upstream.usable(now)]
        for upstream in sorted(usable, key=lambda upstream: upstream.in_flight):
            result = await Attempt(self._forwarder, x, upstream).run(x.body, idle_s)
            if not isinstance(result, Failed):
                return result
        if isinstance(result, Failed):
            return result.response
        message = f"No upstream with {x.model} is ready."
        raise RefusalError(errors.unavailable(message, "no_upstream_ready"))

    async def infer(self, x: ProxiedRequest) -> Response | None:
        body = await self._read(x)
        routed = x.routed = self._routed(x, body)
        failed: Failed | None = None
        limit_s = self._config.timeout / 1000
        while True:
            await self._dispatcher.place(routed)
            x.limits = self._dispatcher.minutes.headers(routed.client, monotonic())
            if routed.refusal is not None:
                # the failure of an attempt explains more to the client than the refusal
                if failed is not None:
                    return failed.response
                raise RefusalError(self._explain(routed))
            upstream = routed.placed_on()
            result = await Attempt(self._forwarder, x, upstream, routed).run(x.body, limit_s)
            if not isinstance(result, Failed):
                return result
            log.event(logging.INFO, "attempt failed", request=x.request_id, reason=result.reason)
            if not self._dispatcher.may_retry(routed, monotonic()):
                return result.response
            failed = result
            self._metrics.retries[upstream.url, x.model].inc()
            back_off_s = min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** (len(routed.tried) - 1))
            await asyncio.sleep(back_off_s * random.uniform(0.5, 1.5))

    def _routed(self, x: ProxiedRequest, body: RequestBody) -> RoutedRequest:
        sent = x.request.headers
        # clients of one address differ only in a key that was checked
        key = key_of(x.request) if self._config.api_keys else b""
        client = f"{key!r}" if key else x.request.remote or "unknown"
        priority = priority_in(body.priority)
        if priority is None:
            priority = priority_in(sent.get(b"x-priority", b"")) or 0
        beginnings: Sequence[int] = ()
        if self._by_prefix:
            session = sent.get(b"x-session-id", b"")
            beginnings = prefixes(session or body.session, body.prompt)
        previous, prompt, only = body.previous, body.prompt, None
        if previous:
            only = jobs.keeper(self._config, self._dispatcher.fleet, previous)
        user = client
        if not key:
            user = (sent.text(b"x-user-id") or body.user_name or client)[:256]
        return RoutedRequest(
            x.model,
            body.deferred,
            beginnings,
            only,
            client,
            body.is_repeatable(x.request.path),
            max(priority, self._config.max_priority),
            user,
            RequestWork(len(prompt), body.max_tokens),
        )

    # --- the body --------------------------------------------------------------------------------

    async def _read(self, x: ProxiedRequest) -> RequestBody:
        """Reads body and model. Raises RefusalError."""
        if not headers.is_plain(x.request.headers):
            raise RefusalError(errors.invalid("Compressed request bodies are not accepted.", 415))
        await self._read_body(x)
        try:
            body = parse_body(x.body)
        except ValueError as error:
            raise RefusalError(errors.invalid(str(error))) from None
        x.openai = x.request.path == "/tokenize" and not body.in_tgis_field
        model = body.model or self._named(x.request)
        if model in PLACEHOLDERS and len(known := self._dispatcher.fleet.models()) == 1:
            model = next(iter(known))
        x.model = self.model_for(model)
        if x.model != model and body.model:
            x.body = renamed(x.body, x.model)
        return body

    async def _read_body(self, x: ProxiedRequest) -> None:
        """Reads the body as it arrives, within the limits of one body and of all bodies held."""
        limit, body = self._config.max_body_bytes, x.request.body
        announced = x.request.content_length or 0

        def too_large() -> RefusalError:
            text = f"The body exceeds {limit} bytes (MAX_BODY_BYTES)."
            return RefusalError(errors.invalid(text, 413))

        def take(data: bytes) -> None:
            x.body += data
            if len(x.body) > limit:
                raise too_large()
            if not self._buffers.take(x, len(data), max(0, announced - len(x.body))):
                raise RefusalError(errors.buffers_full())

        if announced > limit:
            raise too_large()
        if not self._buffers.take(x, 0, announced):
            raise RefusalError(errors.buffers_full())
        try:
            if body.is_whole:
                await body.flow(take)
            else:
                async with asyncio.timeout(self._config.client_idle):
                    await body.flow(take)
        except BrokenBodyError as error:
            raise RefusalError(errors.broken_body(error)) from None
        except TimeoutError:
            raise RefusalError(errors.too_slow()) from None

    def _named(self, request: ClientRequest) -> str:
        """The model of a request whose body names none. Raises RefusalError."""
        if engine := ENGINE.fullmatch(request.path):
            return engine[1]
        if model := request.headers.text(b"x-model") or self._config.default_model:
            return model
        known = list(self._dispatcher.fleet.models())
        if len(known) == 1:
            return known[0]
        if not known and not self._dispatcher.fleet.complete():
            raise RefusalError(errors.unavailable("No upstream is known yet.", "no_upstream_ready"))
        available = ", ".join(known) or "none"
        message = f"'model' (or X-Model) is required, all available models: {available}."
        kind = "invalid_request_error"
        raise RefusalError(Problem(422, kind, "model_required", message, "model"))

    def model_for(self, name: str) -> str:
        """The model of that name, or the one that its aliases name for now."""
        if name not in self._aliases:
            return name
        return self._dispatcher.fleet.available([name, *self._aliases[name]], monotonic())

    # --- what is told ------------------------------------------------------------------------

    def _explain(self, routed: RoutedRequest) -> Problem:
        reason, dispatcher = routed.refusal, self._dispatcher
        self._metrics.refused[reason.value if reason else "",].inc()
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
        return errors.unavailable(message, "no_upstream_ready")

    def _report(self, x: ProxiedRequest, status: int, now: float) -> None:
        routed = x.routed
        upstream = routed.upstream.url if routed is not None and routed.upstream else None
        tried = len(routed.tried) if routed is not None else 0
        queued_s = routed.queued_s if routed is not None else 0.0
        if x.trace is not None:
            _end_trace(x, x.trace, status, queued_s, tried)
        if self._journal is not None:
            line = {
                "type": "routed",
                "request_id": x.request_id,
                "path": x.request.path,
                "start_s": x.started,
                "queued_s": queued_s,
                "end_s": now if x.passed_s is None else x.passed_s,
                "status": status,
                "attempts": x.attempts,
            }
            self._journal.write(line)
        if upstream is not None:
            self._metrics.requests[upstream, x.model, str(status)].inc()
            self._metrics.queue_seconds[x.model,].observe(queued_s)
            if x.begun_s and tried == 1:
                added_s = max(0.0, x.begun_s - queued_s - x.upstream_s)
                self._metrics.added_seconds.observe(added_s)
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
