"""Generations that fail, and servers that cannot generate: the same on every API."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app import create_app
from batching import BatchingManager, EngineFailedError, dynamic_batching_loop
from engine.blocks import Ledger
from engine.inference import Inference
from requested import Sampling
from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import OPENAI, PATHS, RESPONSES, TGI, ask, events, refused
from tests.support.hash_app import byte_tokenizer, load
from tests.support.hash_model import HashModel

DYNAMIC = Config(mode="dynamic")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_its_status(path: str, stream: bool) -> None:
    with serving(DYNAMIC, lambda _: HashModel(fail_on=[1])) as client:
        answer = ask(client, path, tokens=9, stream=stream)
        assert "iteration 1 fails" in refused(answer, path, 424 if path == TGI else 500)
        if path == TGI:
            assert answer.get_json()["error_type"] == "generation"
        assert ask(client, path, tokens=9, stream=stream).status_code == 200
        counts = client.get("/stats").get_json()["counts"]
        assert (counts["failed"], counts["completed"]) == (1, 1)


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_fails_later_ends_with_an_error_and_is_not_done(path: str) -> None:
    with serving(DYNAMIC, lambda _: HashModel(fail_on=[3])) as client:
        answer = ask(client, path, tokens=9, stream=True)
    assert answer.status_code == 200
    *sent, last = events(answer)
    assert "[DONE]" not in answer.text
    assert sent or path == OPENAI[0], "its text may end within a character"
    if path == RESPONSES:
        assert last["type"] == "response.failed"
        last = last["response"]
    error = last["error"] if isinstance(last["error"], str) else last["error"]["message"]
    assert "iteration 3 fails" in error


def test_a_server_refuses_what_it_cannot_serve_before_and_after_it_can(tmp_path: Path) -> None:
    """Routers and gateways send requests to the servers that list a model."""
    app = create_app(Config(mode="dynamic", data_dir=str(tmp_path)), load, byte_tokenizer())
    client, engine = app.test_client(), app.extensions["engine"]
    models = ("/v1/models", "/v1/models/embedded")
    answers = {path: ask(client, path) for path in PATHS}
    for path, answer in (answers | {path: client.get(path) for path in models}).items():
        assert "loaded" in refused(answer, path, 503)
        assert answer.headers["Retry-After"] == "1"
    engine.start()
    while client.get("/health").status_code != 200:
        pass
    assert [client.get(path).status_code for path in models] == [200, 200]
    engine.drain()
    for path in models:
        assert "down" in refused(client.get(path), path, 503)
    engine.jobs.close()


@pytest.mark.parametrize("path", ["/health", *PATHS])
def test_a_server_that_has_failed_is_not_ready_and_says_why(path: str) -> None:
    app = create_app(DYNAMIC, load, byte_tokenizer())
    client = app.test_client()
    manager: BatchingManager = app.extensions["engine"].manager
    manager.serve(model := HashModel(lost_from=1), Ledger(model.num_blocks))
    assert client.get("/health").status_code == 200
    manager.enqueue(Inference([1], 1, Sampling(), time.perf_counter()))
    with pytest.raises(EngineFailedError):
        dynamic_batching_loop(manager, time.perf_counter)
    answer = client.get(path) if path == "/health" else ask(client, path)
    assert answer.status_code == 503
    assert "the device is lost: an assertion failed in a kernel" in answer.text
