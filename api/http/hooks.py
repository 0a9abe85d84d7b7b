"""What every request and response passes through, whatever its path, in the order of
`register_hooks`.

Every request has an id, the client's `X-Request-Id` if it sent a valid one, otherwise a fresh one;
the response carries it either way, and one line is logged after it. Nothing is logged per token.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from flask import Flask, Response, g, has_request_context, request

from api.http.errors import ApiError, RefusedBody, show
from api.http.traces import register_traces
from api.http.worker.handlers import ARRIVED_S
from engine.inference import Inference
from serving.config import Config
from telemetry.tracing import Tracing
from web.browsers import HEADERS, Rules, own_names, response_headers
from web.requests import HEADER, JsonFormatter, bearer_key, is_valid, request_id

log = logging.getLogger(__name__)

PROBES = frozenset(("/", "/health", "/info", "/metrics", "/stats", "/v1/models"))  # logged as debug
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
OPEN_PATHS = ("/health", "/watch")  # without a key
OPEN_FOLDER = "/watch/page/"


def register_hooks(
    app: Flask, config: Config, clock: Callable[[], float], tracing: Tracing | None, model: str
) -> None:
    """Requests pass through these in this order, responses in the opposite one."""
    register_log(app, clock)  # first and last: every line and every response has an id
    register_refusals(app)
    if tracing is not None:
        register_traces(app, tracing, model, PROBES)
    register_cors(app, config.cors_allow_origin)
    register_rules(app, config)
    require_keys(app, config.keys)


# --- a line in the log ----------------------------------------------------------------------


def formatter(kind: str) -> logging.Formatter:
    """For `--log-format`: "plain" or "json"."""
    return JsonFormatter() if kind == "json" else logging.Formatter(PLAIN)


def belongs_to_request(*inferences: Inference) -> None:
    """Adds their cost to the line of the request that is being handled, if there is one."""
    if has_request_context():
        g.inferences = [*g.get("inferences", ()), *inferences]
        for inference in inferences:
            inference.request_id = g.request_id


def register_log(app: Flask, clock: Callable[[], float]) -> None:
    @app.before_request
    def begin() -> None:
        g.request_id = request_id(request.headers.get(HEADER))
        pending_since_s = ARRIVED_S.get()
        g.arrival_s = clock() if pending_since_s is None else pending_since_s

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers[HEADER] = g.request_id
        fields = {
            "request_id": g.request_id,
            "client": request.remote_addr,
            "method": request.method,
            "path": request.path,
            "status": response.status_code,
        }
        level = (
            logging.DEBUG if request.method == "GET" and request.path in PROBES else logging.INFO
        )
        arrival_s, inferences = g.arrival_s, g.get("inferences", ())

        def tell() -> None:
            fields["duration_s"] = round(clock() - arrival_s, 6)
            fields.update(_cost(inferences) if inferences else {})
            if log.isEnabledFor(level):
                told = dict(fields)
                head = f"{told.pop('method')} {show(told.pop('path'))} {told.pop('status')}"
                lists = {k: ",".join(v) for k, v in told.items() if isinstance(v, list)}
                words = " ".join([head, *(f"{k}={v}" for k, v in {**told, **lists}.items())])
                log.log(level, "%s", words, extra={"fields": fields})

        response.call_on_close(tell)  # a stream's response is complete only then
        return response


def _cost(inferences: Sequence[Inference]) -> dict[str, Any]:
    records = [inference.record for inference in inferences]
    told: dict[str, Any] = {
        "prompt_tokens": sum(inference.prompt_tokens for inference in inferences),
        "generated_tokens": sum(inference.received for inference in inferences),
        # one that is just ending: its client has disconnected
        "ends": [record.end if record is not None else "cancelled" for record in records],
    }
    if (first := records[0]) is not None and first.first_token_s is not None:
        told |= {"queue_s": round(first.queue_s, 6), "ttft_s": round(first.ttft_s, 6)}
    return told


# --- what is refused ------------------------------------------------------------------------


def register_refusals(app: Flask) -> None:
    @app.before_request
    def refuse() -> None:
        body = request.environ["wsgi.input"]
        if isinstance(body, RefusedBody):
            raise body.error


def register_rules(app: Flask, config: Config) -> None:
    """Refuses requests that a foreign web page sent: the rules of `web/browsers.py`."""
    rules = Rules(
        keys=config.keys,
        # asks for them only where they count: a resolver without a network delays the start
        names={*(() if config.keys else own_names()), config.host, *config.allow_hosts},
        origins=(config.cors_allow_origin or "").split(","),
        key_option="--api-key",
        origins_option="--cors-allow-origin",
    )

    @app.before_request
    def check() -> None:
        refused = rules.refusal(
            request.method, *(request.headers.get(name, "") for name in HEADERS)
        )
        if refused is not None:
            raise ApiError(403, refused, code="forbidden")


def register_cors(app: Flask, allowed: str | None) -> None:
    """Says which other origins may call the server (`--cors-allow-origin`): `web/browsers.py`.
    `allowed`: origins, comma separated, or `*`; None allows no page."""
    if allowed is None:
        return
    origins = frozenset(allowed.split(","))

    @app.after_request
    def add_headers(response: Response) -> Response:
        headers, vary = response_headers(origins, request.method, request.headers.get)
        response.headers.update(headers)
        response.vary.update(vary)
        return response


# --- keys -----------------------------------------------------------------------------------


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def presented_key() -> str:
    """The key of the present request; "" if none is required."""
    key: str = g.get("api_key", "")
    return key


def presented_owner() -> str:
    """The present client as a hash of its key, which cannot leak the key; "" if none is
    required."""
    key = presented_key()
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def require_keys(app: Flask, keys: Sequence[str]) -> None:
    """`Authorization: Bearer KEY`, on everything but `/health` and the files of the live page.
    Without keys every request is allowed, and so are a browser's preflight requests (OPTIONS),
    which carry none."""
    if not keys:
        return

    @app.before_request
    def check() -> None:
        if is_open(request.path) or request.method == "OPTIONS":
            return
        key = bearer_key(request.headers.get("Authorization", ""))
        if not is_valid(key.encode(), keys):
            raise ApiError(
                401,
                "this server requires a key: Authorization: Bearer KEY, one of --api-key",
                {"WWW-Authenticate": "Bearer"},
                code="invalid_api_key",
            )
        g.api_key = key
