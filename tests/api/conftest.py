"""The handlers in this process, on the hash model: thousands of requests a minute, no sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import create_app
from scheduling.prediction.predictor import Predictor
from serving.config import Config
from serving.thread import Load
from tests.support.hash_app import byte_tokenizer, load
from tests.support.hash_model import HashModel, ScriptedModel
from tests.support.process import PATIENCE_S, eventually
from text.tokenizer import Tokenizer

TWO = {"Authorization": "Bearer two"}
Pair = tuple[socket.socket, socket.socket]
Says = Callable[[str], FlaskClient]
MOST_DRAFTS = 4
MOST_BODY_BYTES = 65536


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Sockets: ours, as a server's, and theirs, as its client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(scope="session")
def client() -> Iterator[FlaskClient]:
    """An iteration ahead, as on a GPU: what is in flight is not there for a reader."""
    with serving(Config(mode="dynamic", max_body_bytes=MOST_BODY_BYTES, lookahead=1)) as client:
        yield client


@pytest.fixture(scope="session")
def embedded() -> Iterator[FlaskClient]:
    """With the embedded model: grammars need its vocabulary."""
    config = Config(mode="dynamic", model="embedded", max_batch_size=8, max_model_len=256)
    with running(create_app(config)) as client:
        yield client


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """With a Batch API of its own, and two keys."""
    folder = tmp_path_factory.mktemp("store")
    config = Config(
        mode="dynamic", max_body_bytes=MOST_BODY_BYTES, data_dir=str(folder), api_key="one,two"
    )
    with serving(config) as client:
        yield client


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Says]:
    """A server whose model answers with this text."""
    with saying(Config(mode="dynamic", data_dir=str(tmp_path_factory.mktemp("says")))) as says:
        yield says


@contextlib.contextmanager
def saying(config: Config) -> Iterator[Says]:
    """The server of `says`."""
    model = ScriptedModel()
    with serving(config, lambda _: model) as server:

        def answering(answer: str) -> FlaskClient:
            model.answer = answer
            return server

        yield answering


@contextlib.contextmanager
def speculating() -> Iterator[FlaskClient]:
    """Without a learnt step time: how busy the machine is would decide how many drafts are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "seconds", lambda *_: None)
        with serving(Config(mode="dynamic", speculate=MOST_DRAFTS)) as client:
            yield client


def serving(
    config: Config, load: Load = load, tokenizer: Tokenizer | None = None
) -> AbstractContextManager[FlaskClient]:
    return running(create_app(config, load, tokenizer or byte_tokenizer()))


def held_at(number: int, **options: Any) -> tuple[HashModel, threading.Event]:
    """A model that waits in its iteration of this number until the event."""
    go = threading.Event()

    def wait(begun: int) -> None:
        if begun == number:
            assert go.wait(PATIENCE_S)

    return HashModel(before_iteration=wait, **options), go


def client_of(app: Flask) -> FlaskClient:
    """With the first of two keys, where a server has some."""
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = "Bearer one"
    return client


def stats_of(client: FlaskClient) -> dict[str, Any]:
    stats: dict[str, Any] = client.get("/stats").get_json()
    return stats


@contextlib.contextmanager
def running(app: Flask) -> Iterator[FlaskClient]:
    engine = app.extensions["engine"]
    engine.start()
    client = client_of(app)
    eventually(lambda: client.get("/health").status_code == 200, "the model is loaded")
    yield client
    engine.drain()
    engine.jobs.close()
