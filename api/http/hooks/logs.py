"""Logs: plain or JSON, an id for every request, and one line after its response.

The id is the client's `X-Request-Id` if it sent a valid one, otherwise a fresh one; the response
carries it either way. Nothing is logged per token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flask import Flask, Response, g, has_request_context, request

from api.http.errors import show
from api.http.worker.intake import ARRIVED_S
from engine.inference import Inference
from telemetry.durations import queue_s, ttft_s
from web.headers import HEADER, request_id
from web.json_text import JsonFormatter

log = logging.getLogger(__name__)

PROBES = frozenset(("/", "/health", "/info", "/metrics", "/stats", "/v1/models"))  # logged as debug
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
            fields.update(_cost(inferences))
            log.log(level, "%s", _Line(fields), extra={"fields": fields})

        response.call_on_close(tell)  # a stream's response is complete only then
        return response


def _cost(inferences: Sequence[Inference]) -> dict[str, Any]:
    if not inferences:
        return {}
    records = [inference.record for inference in inferences]
    told: dict[str, Any] = {
        "prompt_tokens": sum(inference.prompt_tokens for inference in inferences),
        "generated_tokens": sum(inference.received for inference in inferences),
        # one that is just ending: its client has disconnected
        "ends": [record.end if record is not None else "cancelled" for record in records],
    }
    if (first := records[0]) is not None and first.first_token_s is not None:
        told |= {"queue_s": round(queue_s(first), 6), "ttft_s": round(ttft_s(first), 6)}
    return told


class _Line:
    """Formatted only when it is printed."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        told = dict(self._fields)
        head = f"{told.pop('method')} {show(told.pop('path'))} {told.pop('status')}"
        return " ".join([head, *(f"{name}={_short(value)}" for name, value in told.items())])


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
