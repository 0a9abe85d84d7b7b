"""The handlers in this process, on the hash model: thousands of requests a minute, no sockets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import create_app
from serving.config import Config
from serving.thread import Load
from tests.support.hash_app import byte_tokenizer, load
from tests.support.scripted_model import ScriptedModel
from text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def client() -> Iterator[FlaskClient]:
    with serving(Config(mode="dynamic", max_body_bytes=65536)) as client:
        yield client


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """With a Batch API of its own."""
    folder = tmp_path_factory.mktemp("store")
    config = Config(mode="dynamic", max_body_bytes=65536, data_dir=str(folder), api_key="one,two")
    with serving(config) as client:
        yield client


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture(scope="module")
def scripted(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlaskClient]:
    """Whose answers a test writes in advance."""
    folder = str(tmp_path_factory.mktemp("scripted"))
    with serving(Config(mode="dynamic", data_dir=folder), lambda config: model) as client:
        yield client


def serving(
    config: Config, load: Load = load, tokenizer: Tokenizer | None = None
) -> AbstractContextManager[FlaskClient]:
    return running(create_app(config, load, tokenizer or byte_tokenizer()))


@contextlib.contextmanager
def running(app: Flask) -> Iterator[FlaskClient]:
    engine = app.extensions["engine"]
    engine.start()
    client = app.test_client()
    while client.get("/health").status_code != 200:
        time.sleep(0.002)  # requests without a pause would keep the loading thread from the lock
    yield client
    engine.drain()
    engine.jobs.close()
