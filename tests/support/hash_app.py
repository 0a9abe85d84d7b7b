"""A server whose model is the hash model and whose tokens are bytes: gunicorn loads it in place
of `app:create_app()`. The environment variable HASH_MODEL, a JSON object, has options of the model
and these:

answer: a file, what every request is answered with; endless: no token is the end;
hold: a file, iterations that begin while it is there wait until it is gone;
load_gate: a FIFO, loading continues when it is opened for writing; load_error: how loading fails;
least_s: after which an iteration counts as hanging
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flask import Flask

from app import create_app
from seams import LoadedModel, LoadError
from serving.config import Config
from serving.thread import find_remote_model
from tests.support.hash_model import HashModel, ScriptedModel
from tests.support.hashed import VOCAB_SIZE, reference
from text.tokenizer import Detokenizer, Tokenizer

END_ID = VOCAB_SIZE - 1


def byte_tokenizer(end_ids: Sequence[int] = (END_ID,)) -> Tokenizer:
    table = {byte: bytes([byte]) for byte in range(256)} | {END_ID: b"<|endoftext|>"}
    return Tokenizer(lambda text: list(text.encode()), table, end_ids)


def generated(prompt: str | bytes, n: int, seed: int | None) -> list[int]:
    """The tokens of a request that is alone, up to an end."""
    ids = prompt.encode() if isinstance(prompt, str) else prompt
    tokens = reference(list(ids), n, seed)
    return tokens[: tokens.index(END_ID) + 1] if END_ID in tokens else tokens


def spelled(tokens: Sequence[int], *, ends: bool = False) -> str:
    """Their text, which an end is only where it is ignored."""
    detokenizer = Detokenizer(byte_tokenizer())
    return detokenizer.push([t for t in tokens if ends or t != END_ID]) + detokenizer.finish()


def options() -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(os.environ.get("HASH_MODEL", "{}"))
    return asked


def load(config: Config) -> LoadedModel:
    if config.remote_model is not None:
        return find_remote_model(replace(config, model="hash"), config.remote_model)
    asked = {k: v for k, v in options().items() if k not in ("endless", "least_s")}
    if gate := asked.pop("load_gate", None):
        Path(gate).read_bytes()
    if message := asked.pop("load_error", None):
        raise LoadError(message)
    hold = asked.pop("hold", None)
    answer = asked.pop("answer", None)
    model = HashModel(**asked) if answer is None else ScriptedModel(Path(answer), **asked)

    def pace(_: int) -> None:
        while hold and os.path.exists(hold):
            time.sleep(0.005)

    model.before_iteration = pace
    return model


def make_app() -> Flask:
    asked = options()
    end_ids = () if asked.get("endless") else (END_ID,)
    app = create_app(load=load, tokenizer=byte_tokenizer(end_ids))
    if least_s := asked.get("least_s"):
        app.extensions["engine"].least_s = least_s
    return app
