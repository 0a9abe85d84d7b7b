"""Requests that were pending in the intake: a lost model does not fail them, and the time there
counts."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from api.http.worker.intake import ARRIVED_S
from api.stream import event_stream
from app import create_app
from serving.config import Config
from tests.support.hash_app import byte_tokenizer, load

CONTEXT = 10
TOO_LONG = {"prompt": "x" * CONTEXT, "num_tokens": 1}


def test_pending_requests_wait_for_a_lost_model_and_arrivals_are_refused() -> None:
    app = create_app(Config(mode="dynamic"), load, byte_tokenizer())
    manager, intake = app.extensions["engine"].manager, app.extensions["intake"]
    assert intake.most() == math.inf
    manager.model = SimpleNamespace(lost="gone", context=CONTEXT)
    assert intake.most() < math.inf
    manager.queue.open(CONTEXT, CONTEXT)
    client = app.test_client()
    assert client.post("/inference", json=TOO_LONG).status_code == 503
    token = ARRIVED_S.set(0.0)
    try:
        assert client.post("/inference", json=TOO_LONG).status_code == 400
        manager.queue.drain()
        assert client.post("/inference", json=TOO_LONG).status_code == 503
    finally:
        ARRIVED_S.reset(token)
    assert intake.most() == math.inf


class Silent(threading.Event):
    """An update that never comes; it keeps how long it was awaited."""

    timeout: float | None

    def wait(self, timeout: float | None = None) -> bool:
        self.timeout = timeout
        return False


@pytest.mark.parametrize(("now_s", "left_s"), [(0.0, 15.0), (10.0, 5.0), (20.0, 0.0)])
def test_the_time_in_the_intake_counts_towards_a_streams_silence(
    now_s: float, left_s: float
) -> None:
    updated = Silent()
    service: Any = SimpleNamespace(
        config=Config(mode="dynamic", stream_heartbeat=15.0),
        clock=lambda: now_s,
        watch=lambda *_: lambda: None,
    )
    pending: Any = SimpleNamespace(updated=updated, arrival_s=0.0)
    with Flask("").test_request_context():
        event_stream(service, [pending], [])
    assert updated.timeout == left_s
