"""When the store of a server's jobs is opened, and what is said where it cannot be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from deferred.errors import StoreError
from deferred.jobs import Jobs
from tests.support.process import eventually


def jobs_at(where: str | Path) -> Jobs:
    limits: Any = {"window": 4, "most_line_bytes": 100, "retention_s": 3600}
    return Jobs(where, None, names=["m"], hurried=lambda: False, **limits)  # type: ignore[arg-type]


def test_a_store_is_made_when_it_is_used_and_resumed_at_start_where_it_is_there(
    tmp_path: Path,
) -> None:
    for folder in (tmp_path / "jobs", tmp_path / "jobs"):
        first, jobs = not folder.exists(), jobs_at(folder)
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
