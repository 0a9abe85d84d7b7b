"""What every request and response passes through, whatever its path."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask

from api.http.hooks.browsers import register_cors, register_rules
from api.http.hooks.keys import require_keys
from api.http.hooks.logs import register_log
from api.http.hooks.traces import register_traces
from api.http.worker.refusals import register_refusals
from serving.config import Config
from telemetry.tracing import Tracing


def register_hooks(
    app: Flask, config: Config, clock: Callable[[], float], tracing: Tracing | None, model: str
) -> None:
    """Requests pass through these in this order, responses in the opposite one."""
    register_log(app, clock)  # first and last: every line and every response has an id
    register_refusals(app)
    if tracing is not None:
        register_traces(app, tracing, model)
    register_cors(app, config.cors_allow_origin)
    register_rules(app, config)
    require_keys(app, config.keys)
