"""The turns of the maintenance on a real store, and when a server opens its store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from deferred import lines
from deferred.entities import Batch, BatchItem, NewBatch, Unrun
from deferred.errors import StoreError
from deferred.jobs import Jobs
from deferred.maintenance import Maintenance
from deferred.store import JobStore
from tests.deferred.jobs import (
    MODEL,
    OWNER,
    WORKER,
    claim,
    full_disk,
    options_of,
    result,
    rows_of,
    started,
    upload,
)
from tests.support.process import eventually

URL = "/v1/completions"


def maintenance_of(
    store: JobStore, most_line_bytes: int = 1000, started: Callable[[], None] = lambda: None
) -> Maintenance:
    return Maintenance(store, options_of(most_line_bytes=most_line_bytes), started)


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


def test_a_job_of_at_most_50_000_lines_wakes_the_worker(
    sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines.MOST_LINES == 50_000
    monkeypatch.setattr(lines, "MOST_LINES", 500)  # as many take twenty seconds
    most, more = submitted(sqlite_store, 500), submitted(sqlite_store, 501)
    claimable: list[int] = []
    maintenance = maintenance_of(
        sqlite_store, started=lambda: claimable.append(len(claim(sqlite_store, 900)))
    )
    maintenance.turn()
    maintenance.turn()
    assert claimable == [500]
    assert sqlite_store.batches.get(OWNER, most.id).total == 500
    refused = sqlite_store.batches.get(OWNER, more.id)
    assert refused.status == "failed"
    assert [(error["code"], error["line"]) for error in refused.errors or ()] == [
        ("too_many_tasks", None)
    ]


def test_a_batch_that_cannot_be_finalised_holds_up_no_other_and_is_tried_again(
    sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, *others = (started(sqlite_store, 2) for _ in range(3))
    maintenance = maintenance_of(sqlite_store)
    unrun, tries = lines.unrun, 0

    def fails(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        nonlocal tries
        if batch_id == broken.id:
            tries += 1
            raise ValueError("a fault of ours")
        return unrun(batch_id, line, custom_id, why)

    def statuses() -> list[str]:
        return [status(sqlite_store, batch) for batch in (broken, *others)]

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

    def broken(*_: object) -> NoReturn:
        raise RuntimeError("user=eb host=10.0.0.7")

    monkeypatch.setattr(sqlite_store.items, "add", broken)
    maintenance_of(sqlite_store).turn()
    failed = sqlite_store.batches.get(OWNER, batch.id)
    assert failed.status == "failed"
    assert failed.errors
    assert "10.0.0.7" not in failed.errors[0]["message"]
    assert "10.0.0.7" in caplog.text


def test_a_job_that_does_not_fit_on_the_disk_lets_others_go_on(
    sqlite_store: JobStore, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = started(sqlite_store, 2, expires_at=time.time() + 3600)
    sqlite_store.items.save(WORKER, [result(item) for item in claim(sqlite_store, 2)])
    large, small = submitted(sqlite_store, 40, 500_000), submitted(sqlite_store, 3)
    maintenance = maintenance_of(sqlite_store, 2**20)
    with full_disk(data_dir, 6 * 2**20):
        for _ in range(3):
            maintenance.turn()
        found = [status(sqlite_store, batch) for batch in (large, small, answered)]
        assert found == ["validating", "in_progress", "completed"]
        assert rows_of(sqlite_store, BatchItem) == 3
    monkeypatch.setattr("deferred.maintenance.SKIP_S", 0.0)
    maintenance.turn()
    assert sqlite_store.batches.get(OWNER, large.id).total == 40


def test_a_store_is_made_when_it_is_used_and_resumed_at_start_where_it_is_there(
    tmp_path: Path,
) -> None:
    for folder in (tmp_path / "jobs", tmp_path / "jobs"):
        first = not folder.exists()
        jobs = Jobs(folder, None, options_of())  # type: ignore[arg-type]
        jobs.start()
        if first:
            assert jobs.describe() == {"store": "unused"}
            assert not folder.exists()
            assert jobs.store.files.list("", 0.0).data == ()
        eventually(lambda: jobs.describe()["store"] == "open")  # noqa: B023
        jobs.stop(60)
        jobs.close()
        assert not [one for one in threading.enumerate() if one.name.startswith("batch-")]
        with pytest.raises(StoreError, match="shutting down"):
            _ = jobs.store
