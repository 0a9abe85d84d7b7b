"""A server that notes when each function of docs/one-token.md begins and ends.

gunicorn loads `make_app()` in place of `app:create_app()`. The functions are wrapped from outside:
what serves the requests is the server as it is. `GET /spans` returns what was noted.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from flask import Flask, Response, jsonify

from api.http.writer import _Stream
from app import create_app
from batching import BatchingManager
from engine.blocks import Ledger
from engine.queue import RequestQueue
from serving.config import Config
from serving.thread import LoadedModel, load_configured_model

LINEARS = {"qkv", "attn_proj", "fc", "mlp_proj", "head"}


class Span(NamedTuple):
    """One call, on the clock of `time.perf_counter`, which all processes of a machine share."""

    name: str
    thread: int
    start_s: float
    end_s: float


_spans: list[Span] = []


def _noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(work)
    def noted(*args: Any, **kwargs: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            _spans.append(Span(name, threading.get_ident(), start_s, time.perf_counter()))

    return noted


def _note(owner: Any, function: str, name: str) -> None:
    setattr(owner, function, _noted(name, getattr(owner, function)))


def load(config: Config) -> LoadedModel:
    """Called by the engine's thread, the only one that imports torch."""
    from runtime.attention import RaggedAttention

    model: Any = load_configured_model(config)
    for path, module in model.network.named_modules():
        if path.rpartition(".")[2] in LINEARS:
            _note(module, "forward", "linear")
    _note(RaggedAttention, "__call__", "attention")
    _note(model._sampler, "draw", "sampling")
    _note(model, "start", "model")
    loaded: LoadedModel = model
    return loaded


def make_app() -> Flask:
    for owner, function, name in (
        (RequestQueue, "put", "put"),
        (BatchingManager, "begin", "plan"),
        (BatchingManager, "_start", "step"),
        (BatchingManager, "finish", "finish"),
        (Ledger, "open", "ledger"),
        (Ledger, "grow", "ledger"),
        (Ledger, "take_new_blocks", "ledger"),
        (_Stream, "write", "event"),
    ):
        _note(owner, function, name)
    app = create_app(load=load)
    handler = "inference.inference"
    app.view_functions[handler] = _noted("handler", app.view_functions[handler])

    @app.get("/spans")
    def spans() -> Response:
        return jsonify(_spans)

    return app
