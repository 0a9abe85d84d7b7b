"""When the store of a server's jobs is opened, and what is said where it cannot be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from deferred.errors import StoreError, StoreInUseError, StoreUnavailableError
from deferred.jobs import Jobs
from deferred.store import open_store


def jobs_at(where: str | Path) -> Jobs:
    limits: Any = {"window": 4, "most_line_bytes": 100, "retention_s": 3600}
    return Jobs(where, None, names=["m"], hurried=lambda: False, **limits)  # type: ignore[arg-type]


def ended(jobs: Jobs) -> None:
    jobs.stop(60)
    jobs.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batch-")]


def test_nothing_is_made_before_it_is_used(tmp_path: Path) -> None:
    jobs = jobs_at(tmp_path / "jobs")
    jobs.start()
    assert jobs.describe() == {"store": "unused"}
    assert not (tmp_path / "jobs").exists()
    assert jobs.store.files.list("", 0.0).data == ()
    assert (tmp_path / "jobs").is_dir()
    ended(jobs)


def test_work_that_another_process_began_is_resumed_at_start(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    jobs = jobs_at(tmp_path)
    jobs.start()
    while jobs.describe()["store"] != "open":
        pass
    ended(jobs)


@pytest.mark.parametrize("where", ["postgresql://host:no-port/x", "/dev/null/folder"])
def test_why_a_store_cannot_be_opened_is_in_the_log(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = jobs_at(where if "://" in where else Path(where))
    with pytest.raises(StoreUnavailableError) as refused:
        _ = jobs.store
    assert jobs.describe() == {"store": "unavailable"}
    assert str(refused.value) in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_second_server_in_a_folder_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = open_store(tmp_path), jobs_at(tmp_path)
    with pytest.raises(StoreInUseError):
        _ = second.store
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    first.close()


def test_a_server_that_stops_opens_none(tmp_path: Path) -> None:
    jobs = jobs_at(tmp_path)
    jobs.stop(60)
    with pytest.raises(StoreError, match="shutting down"):
        _ = jobs.store
