"""How much an owner may store: files and what batches copy of them."""

from __future__ import annotations

import pytest

from deferred.entities import File, NewBatch, Result
from deferred.errors import QuotaExceededError
from deferred.store import JobStore
from deferred.store.quota import stored_bytes
from deferred.store.schema import CHUNK_BYTES
from tests.deferred.jobs import EXPIRES_S, MODEL, NOW_S, OWNER, WORKER, claim, finalise, new_items

QUOTA = 2 * CHUNK_BYTES


def upload(store: JobStore, size: int, owner: str = OWNER) -> File:
    pieces = [b"x" * min(1000, size - start) for start in range(0, size, 1000)]
    return store.files.create(owner, "batch", "x", pieces, NOW_S, quota_bytes=QUOTA)


def stored(store: JobStore, owner: str = OWNER) -> int:
    with store._database.read() as connection:
        return stored_bytes(connection, owner)


def batch_of(store: JobStore, file: File) -> str:
    spec = NewBatch(file.id, "/v1/completions", MODEL, "24h")
    batch = store.batches.create(
        OWNER, spec, NOW_S, expires_at=EXPIRES_S, quota_bytes=QUOTA, idempotency_key=file.id
    )
    return batch.id


def test_an_upload_beyond_the_quota_is_refused_and_takes_no_space(store: JobStore) -> None:
    kept = upload(store, CHUNK_BYTES)
    with pytest.raises(QuotaExceededError, match=rf"at most {QUOTA} .*--max-stored-bytes"):
        upload(store, CHUNK_BYTES + 1)
    assert stored(store) == CHUNK_BYTES
    upload(store, QUOTA, "another")
    assert [file.id for file in store.files.list(OWNER, NOW_S).data] == [kept.id]
    upload(store, CHUNK_BYTES)
    assert stored(store) == QUOTA
    store.files.delete(OWNER, kept.id, NOW_S)
    upload(store, CHUNK_BYTES)


def test_an_upload_is_refused_while_it_comes_not_at_its_end(store: JobStore) -> None:
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1000
            yield b"x" * 1000

    with pytest.raises(QuotaExceededError):
        store.files.create(OWNER, "batch", "x", endless(), NOW_S, quota_bytes=QUOTA)
    assert taken < QUOTA + 2 * CHUNK_BYTES


def test_uploads_that_come_at_once_share_the_quota(store: JobStore) -> None:
    def together():
        for _ in range(QUOTA // 1000):
            yield b"x" * 1000
        upload(store, CHUNK_BYTES // 2)

    with pytest.raises(QuotaExceededError):
        store.files.create(OWNER, "batch", "x", together(), NOW_S, quota_bytes=QUOTA)


def test_a_batch_counts_with_its_copy_of_the_file_until_it_ends(store: JobStore) -> None:
    file = upload(store, QUOTA // 2)
    other = upload(store, 1)
    batch_id = batch_of(store, other)
    with pytest.raises(QuotaExceededError):
        batch_of(store, file)
    assert stored(store) == QUOTA // 2 + 2
    assert len(store.batches.list(OWNER).data) == 1, "nothing is left of what was refused"
    assert batch_of(store, other) == batch_id, "a repeated call makes no second batch"
    store.batches.end_due(EXPIRES_S)
    finalise(store)
    assert stored(store) == QUOTA // 2 + 1
    store.files.delete(OWNER, other.id, NOW_S)
    batch_of(store, file)


def test_results_count_but_are_never_refused(store: JobStore) -> None:
    batch_id = batch_of(store, upload(store, 10))
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S) is not None
    store.items.add(batch_id, WORKER, new_items(1))
    store.batches.start(batch_id, WORKER, NOW_S)
    (item,) = claim(store, 1)
    assert store.items.save(WORKER, [Result(item.lease, True, b"x" * QUOTA)]) == 1
    assert stored(store) == 2 * 10 + QUOTA
    with pytest.raises(QuotaExceededError):
        upload(store, 1)
    assert finalise(store).status == "completed"
    assert stored(store) == 10 + QUOTA + 1
