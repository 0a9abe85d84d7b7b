"""Batches that ended long ago, written into a job store at once."""

from __future__ import annotations

import secrets

from sqlalchemy import insert

from deferred.store import JobStore
from deferred.store.history import add_to_totals
from deferred.store.schema import batches, files
from tests.deferred.jobs import MODEL

DAY_S = 24 * 3600.0
ROWS = 5000  # an insert
LINES = 10  # of a batch
TIMES = "created_at", "in_progress_at", "finalizing_at", "completed_at", "ended_at"


def add_history(store: JobStore, count: int, ended_s: float) -> None:
    """So many batches that ended then, all lines completed, each with an output file."""
    database = store._database
    for first in range(0, count, ROWS):
        names = [secrets.token_hex(12) for _ in range(min(ROWS, count - first))]
        with database.write(durable=False) as connection:
            connection.execute(insert(files), [_output(name, ended_s) for name in names])
            rows = connection.execute(
                insert(batches).returning(batches), [_ended(name, ended_s) for name in names]
            ).all()
            add_to_totals(database, connection, rows, 1)


def _output(name: str, ended_s: float) -> dict[str, object]:
    return {
        "id": f"file-{name}", "owner": "", "purpose": "batch_output", "filename": f"{name}.jsonl",
        "state": "ready", "size_bytes": 0, "sha256": "", "created_at": ended_s,
        "expires_at": ended_s + DAY_S,
    }  # fmt: skip


def _ended(name: str, ended_s: float) -> dict[str, object]:
    output = f"file-{name}"
    return dict.fromkeys(TIMES, ended_s) | {
        "id": f"batch_{name}", "owner": "", "input_file": 0, "input_file_id": "file-",
        "endpoint": "/v1/completions", "model": MODEL, "completion_window": "24h",
        "status": "completed", "outcome": "completed", "expires_at": ended_s + DAY_S,
        "planned_output_id": output, "planned_error_id": "file-", "output_file_id": output,
        "total": LINES, "completed": LINES, "swept": 1,
    }  # fmt: skip
