"""What clients and probes receive once the engine has failed, until the process ends."""

from __future__ import annotations

import time

import pytest

from app import create_app
from batching import BatchingManager, EngineFailedError, dynamic_batching_loop
from engine.blocks import Ledger
from engine.inference import Inference
from requested import Sampling
from serving.config import Config
from tests.hash_model import HashModel
from tests.server.hash_app import byte_tokenizer, load

WHY = "the device is lost: an assertion failed in a kernel"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/health", None),
        ("/inference", {"prompt": "x", "num_tokens": 1}),
        ("/v1/completions", {"prompt": "x", "model": "embedded"}),
        ("/generate", {"inputs": "x"}),
    ],
)
def test_a_server_that_has_failed_is_not_ready_and_says_why(
    path: str, body: dict[str, object] | None
) -> None:
    app = create_app(Config(mode="dynamic"), load, byte_tokenizer())
    client = app.test_client()
    manager: BatchingManager = app.extensions["engine"].manager
    manager.serve(model := HashModel(lost_from=1), Ledger(model.num_blocks))
    assert client.get("/health").status_code == 200
    manager.enqueue(Inference([1], 1, Sampling(), time.perf_counter()))
    with pytest.raises(EngineFailedError):
        dynamic_batching_loop(manager, time.perf_counter)
    answer = client.get(path) if body is None else client.post(path, json=body)
    assert answer.status_code == 503
    assert WHY in answer.text
