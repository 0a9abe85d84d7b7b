"""A server whose model is the hash model and whose tokens are bytes: gunicorn loads it in place
of `app:create_app()`. What the model does is told by the environment variables below."""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask

from app import LoadedModel, LoadError, create_app
from config import Config
from tests.hash_model import VOCAB_SIZE, HashModel
from text import Tokenizer

STEP_S = "HASH_STEP_S"  # how long an iteration takes
FAIL_ON = "HASH_FAIL_ON"  # numbers of the iterations that fail, comma separated
LOAD_ERROR = "HASH_LOAD_ERROR"  # the message with which loading fails
LOAD_GATE = "HASH_LOAD_GATE"  # a FIFO: loading goes on when someone opens it to write

END_ID = VOCAB_SIZE - 1


def byte_tokenizer() -> Tokenizer:
    table = {byte: bytes([byte]) for byte in range(256)} | {END_ID: b"<|endoftext|>"}
    return Tokenizer(lambda text: list(text.encode()), table, [END_ID])


def load(config: Config) -> LoadedModel:
    if gate := os.environ.get(LOAD_GATE):
        Path(gate).read_bytes()
    if message := os.environ.get(LOAD_ERROR):
        raise LoadError(message)
    return HashModel(
        step_s=float(os.environ.get(STEP_S, "0")),
        fail_on=[int(number) for number in os.environ.get(FAIL_ON, "").split(",") if number],
        rectangles=config.mode != "dynamic",
    )


def make_app() -> Flask:
    return create_app(load=load, tokenizer=byte_tokenizer())
