"""Batches that have ended: they are counted, cost nothing, and are removed after a while."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, text

from deferred.entities import NewBatch
from deferred.errors import NotFoundError
from deferred.store import JobStore, open_store
from deferred.store.history import BATCHES_A_COMMIT, add_to_totals
from deferred.store.schema import batches, files
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    claim,
    finalise,
    new_items,
    save,
    upload,
)

TIMES = "created_at", "in_progress_at", "finalizing_at", "completed_at", "ended_at"


def add_history(store: JobStore, count: int) -> None:
    """So many batches that ended now, all lines completed, each with an output file."""
    database, ends_s = store._database, NOW_S + 24 * 3600
    names = [secrets.token_hex(12) for _ in range(count)]
    outputs = [
        {
            "id": f"file-{name}", "owner": "", "purpose": "batch_output", "filename": name,
            "state": "ready", "size_bytes": 0, "sha256": "", "created_at": NOW_S,
            "expires_at": ends_s,
        }
        for name in names
    ]  # fmt: skip
    ended = [
        dict.fromkeys(TIMES, NOW_S) | {
            "id": f"batch_{name}", "owner": "", "input_file": 0, "input_file_id": "file-",
            "endpoint": "/v1/completions", "model": MODEL, "completion_window": "24h",
            "status": "completed", "outcome": "completed", "expires_at": ends_s,
            "planned_output_id": f"file-{name}", "planned_error_id": "file-",
            "output_file_id": f"file-{name}", "total": 10, "completed": 10, "swept": 1,
        }
        for name in names
    ]  # fmt: skip
    with database.write(durable=False) as connection:
        connection.execute(insert(files), outputs)
        rows = connection.execute(insert(batches).returning(batches), ended).all()
        add_to_totals(database, connection, rows, 1)


def idle_second(store: JobStore) -> None:
    """What the threads of an idle server ask of its store again and again."""
    store.batches.end_due(NOW_S)
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S) is None
    assert store.batches.claim_finalisation(WORKER, NOW_S) is None
    store.sweep(NOW_S, NOW_S - 1)
    store.progress()
    assert store.items.claim(WORKER, MODEL, 8, NOW_S) == []
    store.items.withdraw(WORKER, [])
    store.items.heartbeat(WORKER, [], NOW_S)
    store.items.recover(NOW_S)
    store.items.release(WORKER)


def instructions(store: JobStore, work: Callable[[JobStore], None]) -> int:
    """Of SQLite's virtual machine, some per row that is looked at."""
    work(store)  # compiles what is kept
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    def watch(connection: sqlite3.Connection, *_: Any) -> None:
        connection.set_progress_handler(tick, 1)

    engine = store._database._engine
    event.listen(engine, "checkout", watch)
    work(store)
    event.remove(engine, "checkout", watch)
    return count


@pytest.mark.parametrize("work", [idle_second, JobStore.progress], ids=["idle", "progress"])
def test_ended_batches_cost_an_idle_server_nothing(
    sqlite_store: JobStore, work: Callable[[JobStore], None]
) -> None:
    add_history(sqlite_store, 10)
    few = instructions(sqlite_store, work)
    add_history(sqlite_store, 1000)
    many = instructions(sqlite_store, work)
    assert 0 < many < few + 100


@contextmanager
def plans(engine: Engine) -> Iterator[list[str]]:
    """How PostgreSQL reads what is asked of it."""
    seen: list[str] = []

    def explain(
        connection: Connection, cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            cursor.execute("EXPLAIN " + statement, parameters)
            seen.append("\n".join(row[0] for row in cursor.fetchall()))

    event.listen(engine, "before_cursor_execute", explain)
    yield seen
    event.remove(engine, "before_cursor_execute", explain)


def test_on_postgresql_indexes_lead_past_what_ended(postgresql_url: str) -> None:
    store = open_store(postgresql_url)
    add_history(store, 2000)
    with store._database._engine.begin() as connection:
        connection.execute(text("ANALYZE"))
    with plans(store._database._engine) as seen:
        idle_second(store)
    store.close()
    assert len(seen) > 10
    whole = ("Seq Scan on batches", "Seq Scan on files")
    assert not [plan for plan in seen if any(name in plan for name in whole)]


def test_a_batch_is_removed_with_its_key_and_its_counts_when_it_ended_so_long_ago(
    store: JobStore,
) -> None:
    spec = NewBatch(upload(store), "/v1/completions", MODEL, "24h")
    batch = store.batches.create(OWNER, spec, NOW_S, expires_at=EXPIRES_S, idempotency_key="k")
    store.batches.claim_validation(WORKER, MODEL, NOW_S)
    store.items.add(batch.id, WORKER, new_items(1))
    store.batches.start(batch.id, WORKER, NOW_S)
    store.sweep(NOW_S, NOW_S + 9)
    save(store, claim(store, 1))
    ended = finalise(store, NOW_S + 5)
    assert store.progress().batches == {"completed": 1}
    store.sweep(NOW_S, NOW_S + 4)
    assert store.batches.get(OWNER, batch.id) == ended
    store.sweep(NOW_S, NOW_S + 5)
    with pytest.raises(NotFoundError):
        store.batches.get(OWNER, batch.id)
    assert store.batches.list(OWNER).data == ()
    assert ended.output_file_id is not None
    assert store.files.get(OWNER, ended.output_file_id, NOW_S), "files have an expiry of their own"
    assert store.progress().batches == {}
    assert set(store.progress().items.values()) == {0}
    again = store.batches.create(OWNER, spec, NOW_S, expires_at=EXPIRES_S, idempotency_key="k")
    assert again.id != batch.id


def test_many_batches_are_removed_in_small_commits(sqlite_store: JobStore) -> None:
    add_history(sqlite_store, 2 * BATCHES_A_COMMIT + 1)
    rests: list[None] = []
    removed = sqlite_store.sweep(NOW_S, NOW_S, lambda: rests.append(None))
    assert removed.batches == 2 * BATCHES_A_COMMIT + 1
    assert len(rests) >= 3
