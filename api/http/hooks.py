"""What every request and response passes through, whatever its path, in one order.

Every request has an id, the client's `X-Request-Id` if it sent a valid one, otherwise a fresh one;
the response carries it either way, and one line is logged after it. Nothing is logged per token.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flask import Flask, Response, g, has_request_context, request

from api.http.errors import ApiError, RefusedBody, show
from api.http.worker.handlers import ARRIVED_S, GENERATION_PATHS
from engine.inference import Inference
from serving.config import Config
from telemetry.stats import Stats
from telemetry.tracing import Traced, Tracing
from web.browsers import HEADERS, Rules, own_names, response_headers
from web.requests import HEADER, JsonFormatter, bearer_key, is_valid, request_id

log = logging.getLogger(__name__)

# a GET of them is logged as debug and not traced
PROBES = frozenset(("/", "/health", "/info", "/metrics", "/stats", "/v1/models"))
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
OPEN_PATHS = ("/health", "/watch")  # without a key
LOAD_HEADER = "X-Engine-Load"  # for a router, which need not ask then
OPEN_FOLDER = "/watch/page/"
REFUSED = {**dict.fromkeys((400, 413, 415, 422), "validation"), 429: "overloaded"}  # in /metrics


class Hooks:
    """Around every request: `begin` before its handler, and `finish` with the response, which may
    be that of an error in `begin`. `model`: its name in traces; `load`: what the engine has to
    do, for routers."""

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float],
        tracing: Tracing | None,
        model: str,
        stats: Stats,
        load: Callable[[], str],
    ) -> None:
        # of each key the name of its client, which cannot leak the key
        self._owners = {key: hashlib.sha256(key.encode()).hexdigest() for key in config.keys}
        self._clock = clock
        self._tracing = tracing
        self._model = model
        self._stats = stats
        self._load = load
        allowed = config.cors_allow_origin  # other origins that may call; None allows no page
        self._origins = None if allowed is None else frozenset(allowed.split(","))
        self._rules = Rules(
            keys=config.keys,
            # asks for them only where they count: a resolver without a network delays the start
            names={*(() if config.keys else own_names()), config.host, *config.allow_hosts},
            origins=self._origins or (),
            key_option="--api-key",
            origins_option="--cors-allow-origin",
        )

    def register(self, app: Flask) -> None:
        app.before_request(self.begin)
        app.after_request(self.finish)

    def begin(self) -> None:
        """Raises ApiError: what the worker has refused, what a foreign web page sent, and what has
        no key. Without keys every request is allowed, and with them `/health`, the files of the
        live page and a browser's preflight requests (OPTIONS), which carry none."""
        method, path, header = request.method, request.path, request.headers.get
        g.request_id = request_id(header(HEADER))  # every line and every response has one
        pending_since_s = ARRIVED_S.get()
        g.arrival_s = self._clock() if pending_since_s is None else pending_since_s
        g.is_probe = method == "GET" and path in PROBES
        g.owner = ""  # of what the request stores; with keys, a hash of the client's
        body = request.environ["wsgi.input"]
        if isinstance(body, RefusedBody):
            raise body.error
        if self._tracing is not None and not g.is_probe:
            g.trace = self._tracing.serve(method, dict(request.headers), time.time_ns())
        refused = self._rules.refusal(method, *(header(name, "") for name in HEADERS))
        if refused is not None:
            raise ApiError(403, refused, code="forbidden")
        if self._owners and not (is_open(path) or method == "OPTIONS"):
            key = bearer_key(header("Authorization", ""))
            if not is_valid(key.encode(), self._owners):
                raise ApiError(
                    401,
                    "this server requires a key: Authorization: Bearer KEY, one of --api-key",
                    {"WWW-Authenticate": "Bearer"},
                    code="invalid_api_key",
                )
            g.owner = self._owners[key]

    def finish(self, response: Response) -> Response:
        method, path, status = request.method, request.path, response.status_code
        if path.encode() in GENERATION_PATHS:
            if status < 400 or status == 429:
                response.headers[LOAD_HEADER] = self._load()
            if status in REFUSED:
                self._stats.count_refused(REFUSED[status])
        if self._origins is not None:
            headers, vary = response_headers(self._origins, method, request.headers.get)
            response.headers.update(headers)
            response.vary.update(vary)
        if (trace := g.get("trace")) is not None:
            end_with(response, trace, self._model)
        response.headers[HEADER] = g.request_id
        fields = {
            "request_id": g.request_id,
            "client": request.remote_addr,
            "method": method,
            "path": path,
            "status": status,
        }
        level = logging.DEBUG if g.is_probe else logging.INFO
        inferences: Sequence[Inference] = g.get("inferences", ())
        # a stream's response is complete only then
        response.call_on_close(partial(self._log, level, fields, g.arrival_s, inferences))
        return response

    def _log(
        self, level: int, fields: dict[str, Any], arrival_s: float, inferences: Sequence[Inference]
    ) -> None:
        if not log.isEnabledFor(level):
            return
        fields["duration_s"] = round(self._clock() - arrival_s, 6)
        if inferences:
            records = [inference.record for inference in inferences]
            fields |= {
                "prompt_tokens": sum(inference.prompt_tokens for inference in inferences),
                "generated_tokens": sum(inference.received for inference in inferences),
                # one that is just ending: its client has disconnected
                "ends": [record.end if record is not None else "cancelled" for record in records],
            }
            if (first := records[0]) is not None and first.first_token_s is not None:
                fields |= {"queue_s": round(first.queue_s, 6), "ttft_s": round(first.ttft_s, 6)}
        texts = {k: ",".join(v) if isinstance(v, list) else v for k, v in fields.items()}
        head = f"{texts.pop('method')} {show(texts.pop('path'))} {texts.pop('status')}"
        line = " ".join([head, *(f"{name}={text}" for name, text in texts.items())])
        log.log(level, "%s", line, extra={"fields": fields})


def formatter(kind: str) -> logging.Formatter:
    """For `--log-format`: "plain" or "json"."""
    return JsonFormatter() if kind == "json" else logging.Formatter(PLAIN)


def belongs_to_request(clock: Callable[[], float], *inferences: Inference) -> None:
    """Adds their cost to the line, and their spans to the trace, of the request that is being
    handled, if there is one. `clock`: the clock of the records."""
    if not has_request_context():
        return
    g.inferences = [*g.get("inferences", ()), *inferences]
    if (trace := g.get("trace")) is not None:
        traced = [TracedGeneration(trace, inference, clock) for inference in inferences]
        g.generations = [*g.get("generations", ()), *traced]
    for inference in inferences:
        inference.request_id = g.request_id


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


# --- traces: a span of HTTP, in it a `generate` span for each sequence with Text Generation
# Inference's attribute names, and in that the spans `queue`, `prefill` and `decode`, made from the
# request's record after its response, so that they cost the engine nothing


def end_with(response: Response, trace: Traced, model: str) -> None:
    """Ends the trace of the present request with its response. `model`: its name in the spans."""
    route = request.url_rule.rule if request.url_rule is not None else ""
    trace.span.update_name(f"{request.method} {route}".rstrip())
    attributes = {
        "http.request.method": request.method,
        "url.path": request.path,
        "http.response.status_code": response.status_code,
        "request.id": g.request_id,
    }
    generations: Sequence[TracedGeneration] = g.get("generations", ())
    failed = f"status {response.status_code}" if response.status_code >= 500 else None

    def end() -> None:
        for generation in generations:
            generation.end(model)
        trace.end(time.time_ns(), attributes, error=failed)

    response.call_on_close(end)  # a stream's response is complete only then


class TracedGeneration:
    """The span of one sequence that is about to be queued. `clock`: the clock of the records."""

    def __init__(self, parent: Traced, inference: Inference, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queued_s = clock()
        self._zero_ns = time.time_ns() - round(self._queued_s * 1e9)
        self._inference = inference
        self._trace = parent.begin("generate", self._at(inference.arrival_s))
        inference.trace = self._trace.headers["traceparent"]

    def _at(self, at_s: float) -> int:
        return self._zero_ns + round(at_s * 1e9)

    def end(self, model: str) -> None:
        inference, record = self._inference, self._inference.record
        # without a record its client has just disconnected
        end_s = self._clock() if record is None else record.end_s
        arrival_s = inference.arrival_s
        admitted_s = inference.admitted_s if inference.admitted_s is not None else end_s
        first_s = inference.first_token_s if inference.first_token_s is not None else end_s
        self._trace.part("queue", self._at(self._queued_s), self._at(admitted_s))
        if inference.admitted_s is not None:
            self._trace.part("prefill", self._at(admitted_s), self._at(first_s))
        if inference.first_token_s is not None:
            self._trace.part("decode", self._at(first_s), self._at(end_s))
        tokens = inference.received
        self._trace.end(
            self._at(end_s),
            {
                "total_time": duration(end_s - arrival_s),
                "validation_time": duration(self._queued_s - arrival_s),
                "queue_time": duration(admitted_s - self._queued_s),
                "inference_time": duration(end_s - admitted_s),
                "time_per_token": duration((end_s - admitted_s) / max(1, tokens)),
                "seed": str(inference.sampling.seed),
                "gen_ai.request.model": model,
                "gen_ai.usage.input_tokens": inference.prompt_tokens,
                "gen_ai.usage.output_tokens": tokens,
                "preemptions": inference.num_preemptions,
                "end": record.end if record is not None else "unfinished",
            },
            error=inference.error,
        )


def duration(seconds: float) -> str:
    """In Text Generation Inference's format: `850µs`, `12.5ms`, `1.25s`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.9g}{unit}"
    return f"{max(0.0, seconds) * 1e6:.9g}µs"
