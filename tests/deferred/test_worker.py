"""The worker on a real store, with endpoints that answer on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from deferred.entities import Batch, BatchUsage
from deferred.errors import StoreUnavailableError
from deferred.store import JobStore
from deferred.store.transitions import CANCELLING_S
from deferred.worker import BURST_LINES, MOST_LOST, MOST_TRIES, JobWorker, LineAnswer, NotNowError
from engine.inference import Inference
from seams import Sampling
from tests.deferred.jobs import MODEL, OWNER, lines_of, new_items, options_of, started, unrun
from tests.support.process import PATIENCE_S, eventually

WINDOW = 8
GOOD = LineAnswer(200, {"good": True}, BatchUsage(3, 0, 5))


class Endpoints:
    """Every line is answered at once, unless `held`; the test may say otherwise of each. Lines are
    admitted when they begin if `admitting`."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.open: list[HeldCall] = []
        self.most_open = 0
        self.held = self.admitting = self.closed = False
        self.answers: dict[bytes, list[LineAnswer]] = {}

    def begin(
        self, owner: str, endpoint: str, body: bytes, deadline_s: float, updated: threading.Event
    ) -> HeldCall:
        assert endpoint == "/v1/completions"
        assert deadline_s > 0
        if self.closed:
            raise NotNowError
        self.begun.append(body)
        call = HeldCall(self, body, updated)
        self.open.append(call)
        self.most_open = max(self.most_open, len(self.open))
        if not self.held:
            call.end()
        return call

    def end_all(self) -> None:
        for call in list(self.open):
            call.end()


class HeldCall:
    def __init__(self, endpoints: Endpoints, body: bytes, updated: threading.Event) -> None:
        self.endpoints, self.body, self.updated = endpoints, body, updated
        inference = Inference([1], 1, Sampling(), 0.0)
        if endpoints.admitting:
            inference.admitted_s = time.monotonic()
        self.inferences: Sequence[Inference] = [inference]
        self.ended = self.cancelled = False

    def end(self) -> None:
        self.ended = True
        self.updated.set()

    def read(self) -> LineAnswer | None:
        if not self.ended:
            return None
        self.endpoints.open.remove(self)
        answers = self.endpoints.answers.get(self.body)
        return answers.pop(0) if answers else GOOD

    def cancel(self) -> None:
        self.cancelled = True
        self.endpoints.open.remove(self)


@pytest.fixture
def endpoints() -> Endpoints:
    return Endpoints()


@contextmanager
def working(store: JobStore, endpoints: Endpoints, name: str = "w1") -> Iterator[JobWorker]:
    worker = JobWorker(store, options_of(worker=name, window=WINDOW), endpoints.begin)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def begun(store: JobStore, lines: int, lasts_s: float = 3600) -> Batch:
    return started(store, lines, expires_at=time.time() + lasts_s)


def done(store: JobStore, batch: Batch) -> int:
    found = store.batches.get(OWNER, batch.id)
    return found.completed + found.failed


def written(store: JobStore, file_id: str | None) -> dict[str, Any]:
    lines = lines_of(store, OWNER, file_id, time.time())
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


def finalised(store: JobStore, batch: Batch) -> Batch:
    store.batches.end_due(time.time())
    claimed = store.batches.claim_finalisation("f", time.time())
    assert claimed is not None
    return store.batches.finalise(batch.id, "f", time.time(), unrun)


@pytest.mark.parametrize("most", [WINDOW, 3], ids=["the window", "bytes"])
def test_every_line_is_recorded_once_and_no_more_are_in_hand_than_allowed(
    sqlite_store: JobStore, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    if most < WINDOW:
        monkeypatch.setattr("deferred.worker.CLAIM_BYTES", most * len(new_items(1)[0].body))
    endpoints.held = True
    batch = begun(sqlite_store, 30)
    with working(sqlite_store, endpoints):
        while done(sqlite_store, batch) < 30:
            eventually(lambda: bool(endpoints.open) or done(sqlite_store, batch) == 30)
            for call in list(endpoints.open)[: most - 2]:
                call.end()
    assert endpoints.most_open == most
    ended = finalised(sqlite_store, batch)
    assert len(written(sqlite_store, ended.output_file_id)) == len(endpoints.begun) == 30
    assert (ended.input_tokens, ended.cached_tokens, ended.output_tokens) == (90, 0, 150)


def test_while_others_are_in_a_hurry_lines_begin_in_bursts_without_a_wait(
    sqlite_store: JobStore, endpoints: Endpoints
) -> None:
    endpoints.held = True
    window = 3 * BURST_LINES
    begun(sqlite_store, window)
    options = options_of(window=window, hurried=lambda: True)
    worker = JobWorker(sqlite_store, options, endpoints.begin)
    for lines in (BURST_LINES, 2 * BURST_LINES):
        assert worker.turn() == 0
        assert len(endpoints.begun) == lines


def test_a_refusal_is_the_lines_error_and_a_failure_is_retried_a_limited_number_of_times(
    sqlite_store: JobStore, endpoints: Endpoints
) -> None:
    batch = begun(sqlite_store, 3)
    failure = LineAnswer(500, {"error": "failed"}, BatchUsage())
    endpoints.answers[b'{"prompt":"1"}'] = [failure] * (MOST_TRIES - 1)
    endpoints.answers[b'{"prompt":"2"}'] = [failure] * 10
    endpoints.answers[b'{"prompt":"3"}'] = [LineAnswer(400, {"error": "no"}, BatchUsage())]
    with working(sqlite_store, endpoints):
        eventually(lambda: done(sqlite_store, batch) == 3)
    ended = finalised(sqlite_store, batch)
    assert set(written(sqlite_store, ended.output_file_id)) == {"id-1"}
    errors = written(sqlite_store, ended.error_file_id)
    assert [errors[id]["response"]["status_code"] for id in ("id-2", "id-3")] == [500, 400]
    assert errors["id-3"]["response"]["body"] == {"error": "no"}
    assert [endpoints.begun.count(b'{"prompt":"%d"}' % n) for n in (2, 3)] == [MOST_TRIES, 1]


def test_a_line_that_ended_every_process_is_given_up(
    sqlite_store: JobStore, endpoints: Endpoints
) -> None:
    batch = begun(sqlite_store, 1)
    for number in range(MOST_LOST):
        assert sqlite_store.items.claim(f"dead {number}", MODEL, 1, 0.0)
        sqlite_store.items.recover(time.time())
    with working(sqlite_store, endpoints):
        eventually(lambda: done(sqlite_store, batch) == 1)
    assert not endpoints.begun
    file_id = finalised(sqlite_store, batch).error_file_id
    response = written(sqlite_store, file_id)["id-1"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (500, "server_lost")


def test_a_worker_that_stops_gives_back_what_it_has_not_done(
    sqlite_store: JobStore, endpoints: Endpoints
) -> None:
    endpoints.held = True
    batch = begun(sqlite_store, 20)
    with working(sqlite_store, endpoints, "w1"):
        eventually(lambda: len(endpoints.open) == WINDOW)
        calls = list(endpoints.open)
        calls[0].end()
        eventually(lambda: len(endpoints.begun) == WINDOW + 1)
    assert all(call.cancelled for call in calls[1:])
    assert done(sqlite_store, batch) == 1
    endpoints.held = False
    with working(sqlite_store, endpoints, "w2"):  # needs no lease to run out
        eventually(lambda: done(sqlite_store, batch) == 20)
    assert len(written(sqlite_store, finalised(sqlite_store, batch).output_file_id)) == 20


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_lines_whose_time_is_over_leave_the_engine(
    sqlite_store: JobStore, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr("deferred.worker.HEARTBEAT_S", 0.05 if status == "cancelled" else 3600)
    endpoints.held = endpoints.admitting = True  # a line that waits would be withdrawn instead
    lasts_s = 3600 if status == "cancelled" else 0.5
    while not endpoints.begun:  # on a busy machine a window may end before a line has begun
        batch = begun(sqlite_store, 5, lasts_s)
        with working(sqlite_store, endpoints):
            if status == "cancelled":
                eventually(lambda: len(endpoints.open) == 5)
                sqlite_store.batches.cancel(OWNER, batch.id, time.time())
                assert sqlite_store.batches.end_due(time.time() + CANCELLING_S) == 1
                eventually(lambda: not endpoints.open)
            else:
                eventually(lambda: time.time() > batch.expires_at and not endpoints.open)  # noqa: B023
        ended = finalised(sqlite_store, batch)
        assert ended.status == status
        assert len(written(sqlite_store, ended.error_file_id)) == 5
        lasts_s *= 2


def test_a_cancelled_batch_begins_no_line_that_is_claimed(
    sqlite_store: JobStore, endpoints: Endpoints
) -> None:
    endpoints.closed = True
    batch, other = begun(sqlite_store, 30), begun(sqlite_store, 1, lasts_s=7200)
    with working(sqlite_store, endpoints) as worker:
        eventually(lambda: sqlite_store.progress().items["running"] == WINDOW)
        sqlite_store.batches.cancel(OWNER, batch.id, time.time())
        worker.wake()
        eventually(lambda: sqlite_store.batches.get(OWNER, batch.id).cancelled == 30)
        endpoints.closed = False
        eventually(lambda: done(sqlite_store, other) == 1)
    assert len(endpoints.begun) == 1
    assert finalised(sqlite_store, batch).status == "cancelled"


def test_results_outlast_a_store_that_is_away(
    store: JobStore, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, refused = begun(store, 40), 0
    endpoints.held = True

    def away(*_: object) -> NoReturn:
        nonlocal refused
        refused += 1
        raise StoreUnavailableError("away")

    with working(store, endpoints):
        eventually(lambda: len(endpoints.open) == WINDOW)
        with monkeypatch.context() as absent:
            for name in ("claim", "save", "heartbeat", "withdraw", "recover", "release"):
                absent.setattr(store.items, name, away)
            endpoints.end_all()
            eventually(lambda: refused > 1)
            assert len(endpoints.begun) <= 2 * WINDOW  # nothing new is claimed
        endpoints.held = False
        endpoints.end_all()
        eventually(lambda: done(store, batch) == 40)
    assert len(written(store, finalised(store, batch).output_file_id)) == 40
    assert len(endpoints.begun) == 40  # no result was lost, no line executed twice
