"""The intake: which requests get a handler, in which order, and which are pending. A lost model
does not fail those, and the time there counts."""

from __future__ import annotations

import math
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from api.http.worker.intake import ARRIVED_S, Intake
from api.stream import event_stream
from app import create_app
from serving.config import Config
from tests.support.dialects import NATIVE, ask
from tests.support.hash_app import byte_tokenizer, load

CONTEXT = 10


@given(st.lists(st.sampled_from(["arrive", "finish", "leave"]), max_size=60), st.integers(1, 4))
def test_requests_are_handled_in_order_of_arrival_and_never_more_than_may_be(
    events: list[str], most: int
) -> None:
    intake = Intake[int](lambda: most, clock=lambda: 0.0)
    handled, gone = list[int](), set[int]()
    arrived = 0
    for event in events:
        if event == "arrive":
            if intake.is_full():
                intake.add(arrived)
            else:
                intake.handle()
                handled.append(arrived)
            arrived += 1
        elif event == "finish" and intake.handled:
            intake.handled -= 1
            while (one := intake.take()) is not None:
                handled.append(one[0])
        elif event == "leave" and intake.pending:
            leaving = list(intake.pending)[-1]
            intake.leave(leaving)
            gone.add(leaving)
        assert intake.handled <= most
        assert not intake.pending or intake.handled == most
    assert handled == sorted(handled)
    assert {*handled, *intake.pending, *gone} == set(range(arrived))


def test_no_request_is_pending_for_longer_than_the_patience() -> None:
    now_s = 0.0
    intake = Intake[str](lambda: 0, patience_s=5.0, clock=lambda: now_s)
    intake.add("first")
    now_s = 3.0
    intake.add("second")
    assert intake.take() is None
    now_s = 5.0
    assert intake.take() == ("first", 0.0)
    assert intake.take() is None
    assert intake.handled == 1


def test_pending_requests_wait_for_a_lost_model_and_arrivals_are_refused() -> None:
    app = create_app(Config(mode="dynamic"), load, byte_tokenizer())
    manager, intake = app.extensions["engine"].manager, app.extensions["intake"]
    assert intake.most() == math.inf
    manager.model = SimpleNamespace(lost="gone", context=CONTEXT)
    assert intake.most() < math.inf
    manager.queue.open(CONTEXT, CONTEXT)
    too_long = partial(ask, app.test_client(), NATIVE, "x" * CONTEXT)
    assert too_long().status_code == 503
    token = ARRIVED_S.set(0.0)
    try:
        assert too_long().status_code == 400
        manager.queue.drain()
        assert too_long().status_code == 503
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
