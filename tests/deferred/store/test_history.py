"""Batches that have ended: they are counted, cost nothing, and are removed after a while."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy import event

from deferred.entities import NewBatch
from deferred.errors import NotFoundError
from deferred.store import JobStore
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    claim,
    create,
    finalise,
    new_items,
    save,
    upload,
)


def add_history(store: JobStore, count: int) -> None:
    """So many batches that have ended."""
    for _ in range(count):
        batch = create(store)
        store.batches.claim_validation(WORKER, MODEL, NOW_S)
        store.batches.fail(batch.id, WORKER, [], NOW_S)
    while store.sweep(NOW_S, NOW_S - 1).unfinished:
        pass


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


def instructions(store: JobStore) -> int:
    """Of SQLite's virtual machine in an idle second, some per row that is looked at."""
    idle_second(store)  # compiles what is kept
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    def watch(connection: sqlite3.Connection, *_: Any) -> None:
        connection.set_progress_handler(tick, 1)

    engine = store._database._engine
    event.listen(engine, "checkout", watch)
    idle_second(store)
    event.remove(engine, "checkout", watch)
    return count


def test_ended_batches_cost_an_idle_server_nothing(sqlite_store: JobStore) -> None:
    add_history(sqlite_store, 5)
    few = instructions(sqlite_store)
    add_history(sqlite_store, 40)
    assert 0 < instructions(sqlite_store) < few + 20


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
    assert ended.output_file_id is not None
    assert store.files.get(OWNER, ended.output_file_id, NOW_S), "files have an expiry of their own"
    assert store.progress().batches == {}
    assert set(store.progress().items.values()) == {0}
    again = store.batches.create(OWNER, spec, NOW_S, expires_at=EXPIRES_S, idempotency_key="k")
    assert again.id != batch.id


def test_many_batches_are_removed_in_small_commits(
    sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_history(sqlite_store, 5)
    monkeypatch.setattr("deferred.store.history.BATCHES_A_COMMIT", 2)
    rests: list[None] = []
    assert sqlite_store.sweep(NOW_S, NOW_S, lambda: rests.append(None)).batches == 5
    assert len(rests) >= 3
