"""The doors in this process, on the hash model: thousands of requests a minute, no sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from app import create_app
from config import Config
from tests.server.hash_app import byte_tokenizer, load


@pytest.fixture(scope="session")
def client() -> Iterator[FlaskClient]:
    app = create_app(Config(mode="dynamic", max_body_bytes=65536), load, byte_tokenizer())
    engine = app.extensions["engine"]
    engine.start()
    client = app.test_client()
    while client.get("/health").status_code != 200:
        pass
    yield client
    engine.drain()
