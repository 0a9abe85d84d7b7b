"""When a loop has its turns, and the turns of the maintenance on a real store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from deferred import lines
from deferred.entities import Batch, Duplicate, NewBatch, NewItem, Progress, Unrun
from deferred.errors import StoreUnavailableError
from deferred.loop import Loop, StoppedError
from deferred.maintenance import Maintenance
from deferred.store import JobStore
from deferred.store.schema import batch_items
from tests.deferred.jobs import MODEL, OWNER, claim, full_disk, rows_of, save, started, upload
from tests.deferred.test_worker import PATIENCE_S, eventually

URL = "/v1/completions"


class Hourly(Loop):
    """A turn an hour, if nothing wakes it."""

    def __init__(self) -> None:
        super().__init__(hurried=lambda: False)
        self.turns = threading.Semaphore(0)

    def turn(self) -> float:
        self.turns.release()
        return 3600.0


def test_a_loop_that_is_woken_has_its_next_turn_at_once_and_one_that_is_stopped_ends() -> None:
    loop = Hourly()
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    assert loop.turns.acquire(timeout=PATIENCE_S)
    loop.wake()
    assert loop.turns.acquire(timeout=PATIENCE_S)
    loop.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not loop.turns.acquire(blocking=False)


def maintenance_of(
    store: JobStore, most_line_bytes: int = 1000, started: Callable[[], None] = lambda: None
) -> Maintenance:
    return Maintenance(
        store,
        name="maintenance",
        names=[MODEL],
        most_line_bytes=most_line_bytes,
        retention_s=3600,
        hurried=lambda: False,
        started=started,
    )


def submitted(store: JobStore, count: int, prompt_bytes: int = 0) -> Batch:
    """A batch of so many good lines, not validated yet."""
    envelope = {"method": "POST", "url": URL, "body": {"prompt": "x" * prompt_bytes}}
    envelopes = (envelope | {"custom_id": str(number)} for number in range(count))
    file = upload(store, (json.dumps(one).encode() + b"\n" for one in envelopes))
    now_s = time.time()
    spec = NewBatch(file, URL, MODEL, "24h")
    return store.batches.create(OWNER, spec, now_s, expires_at=now_s + 24 * 3600)


def status(store: JobStore, batch: Batch) -> str:
    return store.batches.get(OWNER, batch.id).status


def test_the_worker_is_woken_once_a_batch_has_lines_to_claim(store: JobStore) -> None:
    claimable: list[int] = []
    maintenance = maintenance_of(store, started=lambda: claimable.append(len(claim(store, 9))))
    submitted(store, 3)
    maintenance.turn()
    assert claimable == [3]


def test_a_batch_that_cannot_be_finalised_holds_up_no_other_and_is_tried_again(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, *others = (started(store, 2) for _ in range(3))
    maintenance = maintenance_of(store)
    unrun, tries = lines.unrun, 0

    def fails(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        nonlocal tries
        if batch_id == broken.id:
            tries += 1
            raise ValueError("a fault of ours")
        return unrun(batch_id, line, custom_id, why)

    def statuses() -> list[str]:
        return [status(store, batch) for batch in (broken, *others)]

    monkeypatch.setattr(lines, "unrun", fails)
    for _ in range(4):  # the windows of all three are over
        maintenance.turn()
    assert statuses() == ["finalizing", "expired", "expired"]
    assert tries == 1

    monkeypatch.setattr(lines, "unrun", unrun)
    monkeypatch.setattr("deferred.maintenance.SKIP_S", 0.0)
    maintenance.turn()
    assert statuses() == ["expired"] * 3


def test_a_fault_of_ours_in_validation_is_told_to_the_log_alone(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = submitted(store, 3)

    def broken(*_: object) -> list[Duplicate]:
        raise RuntimeError("user=eb host=10.0.0.7")

    monkeypatch.setattr(store.items, "add", broken)
    maintenance_of(store).turn()
    failed = store.batches.get(OWNER, batch.id)
    assert failed.status == "failed"
    assert "10.0.0.7" not in failed.errors[0].message
    assert "10.0.0.7" in caplog.text


def test_a_job_that_does_not_fit_on_the_disk_lets_others_go_on(
    store: JobStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = started(store, 2, expires_at=time.time() + 3600)
    save(store, claim(store, 2))
    large, small = submitted(store, 40, 500_000), submitted(store, 3)
    maintenance = maintenance_of(store, 2**20)
    with full_disk(data_dir, 6 * 2**20):
        for _ in range(3):
            maintenance.turn()
        found = [status(store, batch) for batch in (large, small, answered)]
        assert found == ["validating", "in_progress", "completed"]
        assert rows_of(store, batch_items) == 3
    monkeypatch.setattr("deferred.maintenance.SKIP_S", 0.0)
    maintenance.turn()
    assert store.batches.get(OWNER, large.id).counts.total == 40


def test_a_store_that_is_gone_is_told_and_is_no_batchs_fault(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = submitted(store, 3)
    maintenance = maintenance_of(store)
    maintenance._look()

    def gone(*_: object) -> NoReturn:
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as away:
        away.setattr(store.items, "add", gone)
        away.setattr(store, "progress", gone)
        thread = threading.Thread(target=maintenance.run)
        thread.start()
        try:
            eventually(lambda: maintenance.progress is None)
            assert maintenance._skipped_s == {}
            away.undo()
            eventually(lambda: status(store, batch) == "in_progress")
            eventually(lambda: maintenance.progress is not None)
        finally:
            maintenance.stop()
            thread.join()


def test_a_maintenance_that_is_stopped_leaves_a_finalisation_midway(
    each_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(each_store, 100)  # its window is over
    maintenance, unrun = maintenance_of(each_store), lines.unrun

    def stops(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        maintenance.stop()
        return unrun(batch_id, line, custom_id, why)

    with monkeypatch.context() as stopping:
        stopping.setattr(lines, "unrun", stops)
        with pytest.raises(StoppedError):
            maintenance.turn()
    assert status(each_store, batch) == "finalizing"
    maintenance_of(each_store).turn()
    assert each_store.batches.get(OWNER, batch.id).counts.expired == 100
    assert status(each_store, batch) == "expired"


def test_progress_is_refreshed_within_long_steps(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(store, 100)  # its window is over
    submitted(store, 10)
    maintenance, add, unrun = maintenance_of(store), store.items.add, lines.unrun
    seen: list[Progress | None] = []

    def added(batch_id: str, worker: str, items: Iterable[NewItem]) -> list[Duplicate]:
        duplicates = add(batch_id, worker, items)
        seen.append(maintenance.progress)
        return duplicates

    def told(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        if line == 100:
            seen.append(maintenance.progress)
        return unrun(batch_id, line, custom_id, why)

    monkeypatch.setattr("deferred.maintenance.LOOK_S", 0.0)
    monkeypatch.setattr(store.items, "add", added)
    monkeypatch.setattr(lines, "unrun", told)
    maintenance.turn()
    assert [progress and progress.batches for progress in seen] == [
        {"validating": 1, "finalizing": 1},
        {"in_progress": 1, "finalizing": 1},
    ]


def test_a_job_has_at_most_50_000_lines(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines.MOST_LINES == 50_000
    monkeypatch.setattr(lines, "MOST_LINES", 500)  # as many take twenty seconds
    most, more = submitted(store, 500), submitted(store, 501)
    maintenance = maintenance_of(store)
    maintenance.turn()
    maintenance.turn()
    assert store.batches.get(OWNER, most.id).counts.total == 500
    refused = store.batches.get(OWNER, more.id)
    assert refused.status == "failed"
    assert [(error.code, error.line) for error in refused.errors] == [("too_many_tasks", None)]
    assert "50000" in refused.errors[0].message
