"""Turns of the maintenance, on a real store."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from deferred import lines
from deferred.entities import Batch, Duplicate, NewBatch, NewItem, Progress, Unrun
from deferred.errors import StoreUnavailableError
from deferred.loop import StoppedError
from deferred.maintenance import Maintenance
from deferred.store import JobStore
from deferred.store.schema import batch_items
from tests.deferred.jobs import MODEL, OWNER, claim, rows_of, save, started, upload
from tests.deferred.test_worker import eventually

URL = "/v1/completions"


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
    body = {"prompt": "x" * prompt_bytes}
    envelopes = (
        {"custom_id": str(number), "method": "POST", "url": URL, "body": body}
        for number in range(count)
    )
    file = upload(store, (json.dumps(envelope).encode() + b"\n" for envelope in envelopes))
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
    sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = submitted(sqlite_store, 3)

    def broken(*_: object) -> list[Duplicate]:
        raise RuntimeError("user=eb host=10.0.0.7")

    monkeypatch.setattr(sqlite_store.items, "add", broken)
    maintenance_of(sqlite_store).turn()
    failed = sqlite_store.batches.get(OWNER, batch.id)
    assert failed.status == "failed"
    assert "10.0.0.7" not in failed.errors[0].message
    assert "10.0.0.7" in caplog.text


def test_a_job_that_does_not_fit_on_the_disk_lets_others_go_on(
    sqlite_store: JobStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow beyond a size, which is how the database meets a full disk."""
    answered = started(sqlite_store, 2, expires_at=time.time() + 3600)
    save(sqlite_store, claim(sqlite_store, 2))
    large, small = submitted(sqlite_store, 40, 500_000), submitted(sqlite_store, 3)
    maintenance = maintenance_of(sqlite_store, 2**20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in data_dir.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 6 * 2**20, limits[1]))
    try:
        for _ in range(3):
            maintenance.turn()
        assert [status(sqlite_store, batch) for batch in (large, small, answered)] == [
            "validating",
            "in_progress",
            "completed",
        ]
        assert rows_of(sqlite_store, batch_items) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setattr("deferred.maintenance.SKIP_S", 0.0)
    maintenance.turn()
    assert sqlite_store.batches.get(OWNER, large.id).counts.total == 40


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
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(store, 100)  # its window is over
    maintenance, unrun = maintenance_of(store), lines.unrun

    def stops(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        maintenance.stop()
        return unrun(batch_id, line, custom_id, why)

    with monkeypatch.context() as stopping:
        stopping.setattr(lines, "unrun", stops)
        with pytest.raises(StoppedError):
            maintenance.turn()
    assert status(store, batch) == "finalizing"
    successor = maintenance_of(store)
    successor.turn()
    assert store.batches.get(OWNER, batch.id).counts.expired == 100
    assert status(store, batch) == "expired"


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


def test_a_job_has_at_most_50_000_lines(
    sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines.MOST_LINES == 50_000
    monkeypatch.setattr(lines, "MOST_LINES", 500)  # as many take twenty seconds
    most, more = submitted(sqlite_store, 500), submitted(sqlite_store, 501)
    maintenance = maintenance_of(sqlite_store)
    maintenance.turn()
    maintenance.turn()
    assert sqlite_store.batches.get(OWNER, most.id).counts.total == 500
    refused = sqlite_store.batches.get(OWNER, more.id)
    assert refused.status == "failed"
    assert [(error.code, error.line) for error in refused.errors] == [("too_many_tasks", None)]
    assert "50000" in refused.errors[0].message
