"""Batches and their lines, from validation to the files of results; the walk of
`test_properties.py` takes their steps in any order."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import pytest

from deferred.entities import Batch, BatchItem, NewBatch, NewItem
from deferred.errors import IdempotencyMismatchError, LeaseLostError, NotFoundError
from deferred.store import JobStore, open_store
from deferred.store.files import CHUNK_BYTES
from deferred.store.transitions import LEASE_S
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    claim,
    counts_of,
    lines_of,
    new_items,
    result,
    shown,
    started,
    swept,
    unrun,
    upload,
    validating,
)


def test_a_new_batch_says_what_was_asked_for_as_often_as_its_key_is_sent(store: JobStore) -> None:
    metadata = {"run": "é\0"}
    spec = NewBatch(upload(store), "/v1/chat/completions", MODEL, "24h", metadata, 9.0)

    def ask(now_s: float) -> Batch:
        return store.batches.create(OWNER, spec, now_s, expires_at=now_s + 9, idempotency_key="k")

    batch = ask(NOW_S)
    store.files.delete(OWNER, spec.input_file_id, NOW_S)
    assert shown(store.batches.get(OWNER, batch.id)) == shown(ask(NOW_S + 1)) == shown(batch)
    other = replace(spec, endpoint="/v1/completions")
    with pytest.raises(IdempotencyMismatchError, match=batch.id):
        store.batches.create(OWNER, other, NOW_S, expires_at=EXPIRES_S, idempotency_key="k")
    assert shown(batch).items() >= asdict(spec).items()
    assert batch.status == "validating"
    assert (batch.created_at, batch.expires_at) == (NOW_S, NOW_S + 9)
    assert (counts_of(batch), batch.input_tokens, batch.errors) == ((0,) * 5, 0, None)


def test_a_batch_takes_its_owners_file_alone_and_its_key_is_theirs(store: JobStore) -> None:
    spec = NewBatch(upload(store), "/v1/completions", MODEL, "24h")
    until: Any = {"expires_at": EXPIRES_S, "idempotency_key": "k"}
    batch = store.batches.create(OWNER, spec, NOW_S, **until)
    with pytest.raises(NotFoundError):
        store.batches.create("other", spec, NOW_S, expires_at=EXPIRES_S)
    theirs = replace(spec, input_file_id=upload(store, owner="other"))
    assert store.batches.create("other", theirs, NOW_S, **until).id != batch.id


# --- lines -----------------------------------------------------------------------------------


def test_lines_whose_id_is_taken_are_named_with_the_first_of_that_id(store: JobStore) -> None:
    custom_id = "a\0b" + "é" * 5000
    batch_id = validating(store).id
    items = new_items(1100)
    items[0] = NewItem(1, custom_id, b"\x00\xff")
    items[2] = NewItem(3, custom_id, b"{}")  # in the same commit
    items[1099] = NewItem(1100, "id-2", b"{}")  # in a later one
    assert store.items.add(batch_id, WORKER, iter(items)) == [
        (items[2], 1),
        (items[1099], 2),
    ]
    again = [NewItem(2000, "id-700", b"{}"), NewItem(2001, "new", b"{}"), *items[:2]]
    assert store.items.add(batch_id, WORKER, again) == [(again[0], 700)]
    assert claim(store, 9) == [], "before the validation has ended"
    store.batches.start(batch_id, WORKER, NOW_S)
    (item,) = claim(store, 1)
    batch = item.batch
    assert (batch.id, item.lease.line, item.custom_id) == (batch_id, 1, custom_id)
    assert (batch.owner, batch.endpoint, batch.expires_at) == (OWNER, "/v1/completions", EXPIRES_S)
    assert (item.body, item.lost) == (b"\x00\xff", 0)


def test_servers_that_start_at_once_on_one_postgresql_migrate_once_and_record_each_line_once(
    postgresql_url: str,
) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> JobStore:
        barrier.wait()
        return open_store(postgresql_url)

    def work(store: JobStore, worker: str) -> list[int]:
        seen: list[int] = []
        while items := claim(store, 7, worker=worker):
            assert store.items.save(worker, [result(item) for item in items]) == len(items)
            seen += [item.lease.line for item in items]
        return seen

    with ThreadPoolExecutor(4) as pool:
        stores = [*pool.map(start, range(4))]
        batch = started(stores[0], 300)
        seen = [*pool.map(work, stores, "abcd")]
    # a thread may have found all that is left locked by the others, and ended
    seen.append(work(stores[0], "a"))
    assert sorted(chain(*seen)) == list(range(1, 301))
    batch = stores[1].batches.get(OWNER, batch.id)
    assert counts_of(batch) == (300, 300, 0, 0, 0)
    for store in stores:
        store.close()


# --- files of results ------------------------------------------------------------------------


def test_a_worker_that_loses_the_lease_midway_leaves_no_trace(store: JobStore) -> None:
    batch = started(store, 3)
    store.batches.end_due(EXPIRES_S)
    later_s = EXPIRES_S + LEASE_S

    def overtaken(*of) -> bytes:
        if store.batches.get(OWNER, batch.id).status == "finalizing":
            store.batches.claim_finalisation("b", later_s)
            store.batches.finalise(batch.id, "b", later_s, unrun)
        return b"x" * CHUNK_BYTES

    assert store.batches.claim_finalisation("a", EXPIRES_S) is not None
    assert store.batches.claim_finalisation("b", later_s - 1) is None
    for worker in "ba":
        with pytest.raises(LeaseLostError):
            store.batches.finalise(batch.id, worker, EXPIRES_S, overtaken)
    ended = store.batches.get(OWNER, batch.id)
    lines = lines_of(store, OWNER, ended.error_file_id, later_s)
    assert [line["custom_id"] for line in lines] == ["id-1", "id-2", "id-3"]
    files = store.files.list(OWNER, later_s).data
    assert {file.id for file in files} == {batch.input_file_id, ended.error_file_id}


def test_others_may_write_while_a_batch_is_finalised_and_swept(store: JobStore) -> None:
    batch = started(store, 1100)
    store.batches.end_due(EXPIRES_S)
    rests = 0

    def rest() -> None:
        nonlocal rests
        rests += 1
        upload(store)

    store.batches.claim_finalisation(WORKER, EXPIRES_S)
    store.batches.finalise(batch.id, WORKER, EXPIRES_S, unrun, rest)
    assert rests > 30  # a second's work has many
    store.files.delete(OWNER, batch.input_file_id, EXPIRES_S)
    rests = 0
    assert swept(store, BatchItem, EXPIRES_S, rest) == 1100
    assert rests >= 3  # a file, and twice items
    assert swept(store, BatchItem, EXPIRES_S) == 0
