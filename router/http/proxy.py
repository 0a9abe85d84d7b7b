"""Handles inference requests: reads, queues, forwards, retries, answers."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable

from router import log
from router.config import RouterConfig, aliased
from router.dispatching import AsyncDispatcher
from router.http.exchange import Failed, ProxiedRequest
from router.http.forward import Forwarder
from router.http.jobs import JobRelay
from router.http.relay import Relay
from router.http.server import ClientGoneError, ClientRequest
from router.http.streams import BrokenBodyError
from router.http.telemetry import RequestTelemetry
from router.http.tokens import TokenRelay
from router.metrics import Metrics
from router.rules.buffers import BufferLimit
from router.rules.load import RequestWork
from router.rules.messages import errors, headers
from router.rules.messages.errors import Problem, Response
from router.rules.messages.request_body import (
    RequestBody,
    parse_body,
    prefixes,
    priority_in,
    renamed,
)
from router.rules.request import NoPlace, RoutedRequest
from telemetry.tracing import Tracing
from web.requests import HEADER, bearer_key, is_valid, request_id

BACK_OFF_S = 0.05
MAX_BACK_OFF_S = 1.0
SESSION, USER, PRIORITY = "X-Session-Id", "X-User-Id", "X-Priority"

ENGINE = re.compile("/v1/engines/(.+)/completions")
# TGI's clients send these names to a server of one model.
PLACEHOLDERS = frozenset({"tgi", "dummy"})


def key_of(request: ClientRequest) -> bytes:
    """The request's bearer token, whose bytes may be any."""
    return bearer_key(request.headers.get("Authorization")).encode(errors="surrogateescape")


def holds_key(request: ClientRequest, keys: tuple[str, ...]) -> bool:
    return is_valid(key_of(request), keys)


class Proxy:
    """Handles every request that goes to an upstream."""

    def __init__(
        self,
        config: RouterConfig,
        dispatcher: AsyncDispatcher,
        forwarder: Forwarder,
        buffers: BufferLimit,
        relay: Relay,
        jobs: JobRelay,
        tokens: TokenRelay,
        metrics: Metrics,
        telemetry: RequestTelemetry,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._telemetry = telemetry
        self._config = config
        self._aliases: dict[str, list[str]] = {}
        for name, model in map(aliased, config.alias):
            self._aliases.setdefault(name, []).append(model)
        self._by_prefix = config.policy == "prefix"
        self._dispatcher = dispatcher
        self._forwarder = forwarder
        self._buffers = buffers
        self._relay = relay
        self._jobs = jobs
        self._tokens = tokens
        self._metrics = metrics
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self.draining = False
        self._stopping = False

    @property
    def running(self) -> int:
        """Requests not answered yet."""
        return len(self._tasks)

    async def idle(self) -> None:
        """Returns when no request runs any more. For draining."""
        while self._tasks:
            self._idle.clear()
            await self._idle.wait()

    def stop(self) -> None:
        """Ends the running requests; streams that have begun get an error event."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    async def handle(self, request: ClientRequest) -> Response | None:
        """Answers one inference request, whatever happens. If the client leaves, its place and its
        memory are freed."""
        return await self._handle(request, self._infer)

    async def handle_jobs(self, request: ClientRequest) -> Response | None:
        """The same for a request about files, batches or stored responses."""
        return await self._handle(request, self._forward)

    async def handle_tokens(self, request: ClientRequest) -> Response | None:
        """The same for a text that is to become tokens, or the reverse."""
        return await self._handle(request, self._tokenize)

    async def _handle(
        self,
        request: ClientRequest,
        answer: Callable[[ProxiedRequest], Awaitable[Response | None]],
    ) -> Response | None:
        given = request.headers.get(HEADER)
        x = ProxiedRequest(request, self._dispatcher.now(), request_id(given, prefix="req-"))
        if self._tracing is not None:
            x.trace = self._tracing.serve(
                request.method, dict(request.headers.items()), time.time_ns()
            )
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        status = 499  # nginx logs this for a client that left
        try:
            problem = self._not_let_in(x)
            response = await answer(x) if problem is None else self._refuse(x, problem)
            status = response.status if response is not None else request.status
            return response
        except ClientGoneError:
            self._metrics.departed.inc()
            raise
        except asyncio.CancelledError:
            if not self._stopping:
                self._metrics.departed.inc()
                raise
            status = 503
            stopped = errors.unavailable("The router was shut down.", "shutting_down")
            return await self._abandon(x, stopped)
        except Exception:
            status = 500
            log.LOGGER.exception("internal error", extra={"fields": {"request": x.request_id}})
            broken = Problem(500, "server_error", "internal_error", "The router failed.")
            return await self._abandon(x, broken)
        finally:
            self._tasks.discard(task)
            if self.draining and not self._tasks:
                self._idle.set()
            self._buffers.release_all(x)
            if x.routed is not None:
                self._dispatcher.leave(x.routed)
            self._telemetry.report(x, status)

    def _not_let_in(self, x: ProxiedRequest) -> Problem | None:
        if self.draining:
            problem = errors.unavailable("The router is shutting down.", "shutting_down")
            problem.headers["Connection"] = "close"
            return problem
        if self._config.api_keys and not holds_key(x.request, self._config.api_keys):
            return errors.no_key("A valid API key is required.")
        return None

    async def _forward(self, x: ProxiedRequest) -> Response | None:
        problem = await self._jobs.forward(x)
        return None if problem is None else self._refuse(x, problem)

    async def _tokenize(self, x: ProxiedRequest) -> Response | None:
        body = await self._read(x)
        problem = body if isinstance(body, Problem) else await self._tokens.forward(x)
        return None if problem is None else self._refuse(x, problem)

    async def _infer(self, x: ProxiedRequest) -> Response | None:
        body = await self._read(x)
        if isinstance(body, Problem):
            return self._refuse(x, body)
        only = self._jobs.keeper(body.previous) if body.previous else None
        # clients of one address differ only in a key that was checked
        key = key_of(x.request) if self._config.api_keys else b""
        client = f"{key!r}" if key else x.request.remote or "unknown"
        session = x.request.headers.get(SESSION, "").encode(errors="surrogateescape")
        routed = RoutedRequest(
            x.model,
            body.deferred,
            prefixes(session or body.session, body.prompt) if self._by_prefix else (),
            only,
            client=client,
            repeatable=body.is_repeatable(x.request.path),
            priority=self._priority(x, body),
            user=client if key else (x.request.headers.get(USER) or body.user or client)[:256],
            work=RequestWork(len(body.prompt), body.max_tokens),
        )
        self._dispatcher.arrive(routed)
        x.limits = self._dispatcher.minute_limits(routed)
        x.routed = routed
        failed: Failed | None = None
        while True:
            await self._dispatcher.decision(routed)
            if routed.refusal is not None:
                # the failure of an attempt explains more to the client than the refusal
                return failed.response if failed else self._refuse(x, self._explain(routed))
            upstream = routed.upstream
            assert upstream is not None
            result = await self._relay.attempt(x, routed, upstream)
            if not isinstance(result, Failed):
                return result
            log.event(logging.INFO, "attempt failed", request=x.request_id, reason=result.reason)
            if not self._dispatcher.may_retry(routed):
                return result.response
            failed = result
            self._metrics.retries.labels(upstream.url, x.model).inc()
            back_off_s = min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** (len(routed.tried) - 1))
            await asyncio.sleep(back_off_s * random.uniform(0.5, 1.5))
            self._dispatcher.retry(routed)

    async def _read(self, x: ProxiedRequest) -> RequestBody | Problem:
        """Reads body and model."""
        if not headers.is_plain(x.request.headers):
            return errors.invalid("Compressed request bodies are not accepted.", 415)
        try:
            async with asyncio.timeout(self._config.client_idle):
                problem = await self._read_body(x)
        except BrokenBodyError as error:
            return errors.broken_body(error)
        except TimeoutError:
            return errors.too_slow()
        if problem is not None:
            return problem
        engine = ENGINE.fullmatch(x.request.path)
        named = engine[1] if engine else x.request.headers.get("X-Model") or None
        try:
            body = parse_body(x.body, named)
        except ValueError as error:
            return errors.invalid(str(error))
        x.openai = x.request.path == "/tokenize" and not body.in_tgis_field
        model = body.model or self._config.default_model
        known = list(self._dispatcher.fleet.models())
        if model in PLACEHOLDERS and len(known) == 1:
            model = known[0]
        if not model:
            if not known and not self._dispatcher.fleet.complete():
                return errors.unavailable("No upstream is known yet.", "no_upstream_ready")
            if len(known) != 1:
                available = ", ".join(known) or "none"
                message = f"'model' (or X-Model) is required, all available models: {available}."
                return Problem(422, "invalid_request_error", "model_required", message, "model")
            model = known[0]
        x.model = self.model_for(model)
        if x.model != model and body.model:
            x.body = renamed(x.body, x.model)
        return body

    def model_for(self, name: str) -> str:
        """The model of that name, or the one that its aliases name for now."""
        return self._dispatcher.available([name, *self._aliases.get(name, ())])

    def _priority(self, x: ProxiedRequest, body: RequestBody) -> int:
        told = body.priority
        if told is None:
            named = x.request.headers.get(PRIORITY, "")
            told = priority_in(named.encode(errors="surrogateescape"))
        return max(told or 0, self._config.max_priority)

    async def _read_body(self, x: ProxiedRequest) -> Problem | None:
        """Reads the body as it arrives, within the limits of one body and of all bodies held."""
        limit = self._config.max_body_bytes
        announced = x.request.content_length or 0
        while announced <= limit and x.buffered_bytes <= limit:
            if not self._buffers.fits(announced - x.buffered_bytes):
                return errors.buffers_full()
            chunk = await x.request.body.read()
            if not chunk:
                return None
            if not self._buffers.take(x, len(chunk)):
                return errors.buffers_full()
            x.body += chunk
        return errors.invalid(f"The body exceeds {limit} bytes (MAX_BODY_BYTES).", 413)

    async def _abandon(self, x: ProxiedRequest, problem: Problem) -> Response | None:
        """Sends an error instead of the answer, or at the end of an answer that has begun."""
        if not x.request.status:
            return self._refuse(x, problem)
        await self._forwarder.break_off(x, problem)
        return None

    def _explain(self, routed: RoutedRequest) -> Problem:
        reason = routed.refusal
        self._metrics.refused.labels(reason.value if reason else "").inc()
        if routed.over_limit is not None:
            return errors.over_limit(routed.over_limit)
        if reason is NoPlace.UNKNOWN_MODEL:
            return errors.unknown_model(routed.model, list(self._dispatcher.fleet.models()))
        if reason is NoPlace.QUEUE_FULL:
            wait_s = self._dispatcher.state.longest_wait_s(routed.model, self._dispatcher.now())
            return errors.queue_full(routed.model, self._config.max_queue, wait_s, routed.deferred)
        if reason is NoPlace.TIMEOUT:
            message = "Timeout waiting for a free upstream (TIMEOUT), try again later."
            return errors.unavailable(message, "timeout")
        message = f"No upstream with {routed.model} became ready in time (WAIT_FOR)."
        return errors.unavailable(message, "no_upstream_ready")

    @staticmethod
    def _refuse(x: ProxiedRequest, problem: Problem) -> Response:
        response = errors.response(problem, x.request.path, openai=x.openai)
        response.headers += headers.encoded({HEADER: x.request_id, **x.limits})
        return response
