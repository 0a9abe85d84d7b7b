"""A server whose model is the hash model and whose tokens are bytes: gunicorn loads it in place
of `app:create_app()`. The environment variables below control the model."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from flask import Flask

from app import create_app
from loading import LoadedModel, LoadError
from serving.config import Config
from serving.liveness import Limit
from serving.thread import find_remote_model
from tests.support.hash_model import HashModel, ScriptedModel
from tests.support.hashed import VOCAB_SIZE, reference
from text.tokenizer import Detokenizer, Tokenizer

STEP_S = "HASH_STEP_S"  # how long an iteration takes
FAIL_ON = "HASH_FAIL_ON"  # numbers of the iterations that fail, comma separated
LOST_FROM = "HASH_LOST_FROM"  # number of the iteration in which the device is lost
HOLD = "HASH_HOLD"  # a file: iterations that begin while it is there wait until it is gone
ENDLESS = "HASH_ENDLESS"  # if set, no token is the end
LOAD_ERROR = "HASH_LOAD_ERROR"  # the message with which loading fails
LEAST_S = "HASH_LEAST_S"  # after which an iteration counts as hanging
ANSWER = "HASH_ANSWER"  # a file: what every request is answered with
CONTEXT = "HASH_CONTEXT"  # tokens
LOAD_GATE = "HASH_LOAD_GATE"  # a FIFO: loading continues when it is opened for writing

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


def load(config: Config) -> LoadedModel:
    if config.remote_model is not None:
        return find_remote_model(replace(config, model="hash"), config.remote_model)
    if gate := os.environ.get(LOAD_GATE):
        Path(gate).read_bytes()
    if message := os.environ.get(LOAD_ERROR):
        raise LoadError(message)
    answer = os.environ.get(ANSWER)
    make = HashModel if answer is None else partial(ScriptedModel, Path(answer))
    model = make(
        context=int(os.environ.get(CONTEXT, "1024")),
        step_s=float(os.environ.get(STEP_S, "0")),
        fail_on=[int(number) for number in os.environ.get(FAIL_ON, "").split(",") if number],
        lost_from=float(os.environ.get(LOST_FROM, "inf")),
    )
    hold = os.environ.get(HOLD)

    def pace(_: int) -> None:
        while hold and os.path.exists(hold):
            time.sleep(0.005)

    model.before_iteration = pace
    return model


def make_app() -> Flask:
    end_ids = () if os.environ.get(ENDLESS) else (END_ID,)
    app = create_app(load=load, tokenizer=byte_tokenizer(end_ids))
    if least_s := os.environ.get(LEAST_S):
        app.extensions["engine"].limit = Limit(least_s=float(least_s))
    return app
