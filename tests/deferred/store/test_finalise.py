"""The end of a batch: one worker writes its files, whole or not at all."""

import pytest

from deferred.entities import Result
from deferred.errors import LeaseLostError, NotFoundError
from deferred.store import JobStore
from deferred.store.schema import CHUNK_BYTES, batch_items, file_chunks, item_bodies
from deferred.store.transitions import LEASE_S
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    claim,
    finalise,
    ids,
    lines_of,
    new_items,
    rows_of,
    save,
    started,
    unrun,
    upload,
    validating,
)


def test_results_are_a_file_of_the_batchs_owner_however_large_they_are(store: JobStore) -> None:
    batch = started(store, 5, output_expires_after_s=60.0)
    texts = [bytes([65 + i]) * (CHUNK_BYTES * i // 2 + 1) for i in range(5)]
    store.items.save(
        WORKER,
        [Result(item.lease, True, text) for item, text in zip(claim(store, 5), texts, strict=True)],
    )
    ended = finalise(store, NOW_S + 7)
    assert ended.output_file_id is not None
    file = store.files.get(OWNER, ended.output_file_id, NOW_S + 7)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert (file.created_at, file.expires_at) == (NOW_S + 7, NOW_S + 67)
    content = b"".join(store.files.content(OWNER, file.id, NOW_S))
    assert content == b"".join(text + b"\n" for text in texts)
    with pytest.raises(NotFoundError):
        store.files.get("other", file.id, NOW_S)


def test_a_batch_is_finalised_when_nothing_is_left_to_run_and_by_one(store: JobStore) -> None:
    started(store, 2)
    save(store, claim(store, 1))
    assert store.batches.claim_finalisation("a", NOW_S) is None
    save(store, claim(store, 1))
    later_s = NOW_S + 1 + LEASE_S
    claimed = store.batches.claim_finalisation("a", NOW_S + 1)
    assert claimed is not None
    assert (claimed.status, claimed.finalizing_at) == ("finalizing", NOW_S + 1)
    assert store.batches.claim_finalisation("b", later_s - 1) is None
    with pytest.raises(LeaseLostError):
        store.batches.finalise(claimed.id, "b", NOW_S, unrun)
    again = store.batches.claim_finalisation("b", later_s)
    assert again is not None
    assert again.finalizing_at == NOW_S + 1
    with pytest.raises(LeaseLostError):
        store.batches.finalise(claimed.id, "a", NOW_S, unrun)
    assert store.batches.finalise(claimed.id, "b", later_s, unrun).status == "completed"


def test_a_worker_that_loses_the_lease_midway_leaves_no_trace(store: JobStore) -> None:
    batch = started(store, 3)
    store.batches.end_due(EXPIRES_S)
    later_s = EXPIRES_S + LEASE_S

    def overtaken(*of) -> bytes:
        if store.batches.get(OWNER, batch.id).status == "finalizing":
            store.batches.claim_finalisation("b", later_s)
            store.batches.finalise(batch.id, "b", later_s, unrun)
        return b"x" * CHUNK_BYTES

    store.batches.claim_finalisation("a", EXPIRES_S)
    with pytest.raises(LeaseLostError):
        store.batches.finalise(batch.id, "a", EXPIRES_S, overtaken)
    ended = store.batches.get(OWNER, batch.id)
    assert ids(lines_of(store, OWNER, ended.error_file_id, later_s)) == ["id-1", "id-2", "id-3"]
    files = store.files.list(OWNER, later_s).data
    assert {file.id for file in files} == {batch.spec.input_file_id, ended.error_file_id}


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
    store.files.delete(OWNER, batch.spec.input_file_id, EXPIRES_S)
    rests = 0
    assert store.sweep(EXPIRES_S, 0.0, rest).items == 1100
    assert rests >= 3  # a file, and twice items
    assert store.sweep(EXPIRES_S, 0.0).items == 0


def test_a_validation_that_is_given_up_leaves_nothing_and_can_begin_again(store: JobStore) -> None:
    batch = validating(store, 1100)
    store.batches.give_up(batch.id, WORKER)
    assert rows_of(store, batch_items) == rows_of(store, item_bodies) == 0
    assert store.batches.get(OWNER, batch.id) == batch
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S, [batch.id]) is None
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S) is not None
    assert store.items.add(batch.id, WORKER, new_items(3)) == []


@pytest.mark.parametrize("given_up", [False, True])
def test_a_finalisation_that_broke_off_is_repeated_with_the_same_files(
    store: JobStore, given_up: bool
) -> None:
    batch = started(store, 30)
    store.batches.end_due(EXPIRES_S)
    before = rows_of(store, file_chunks)

    def breaks(batch_id: str, line: int, custom_id: str, why) -> bytes:
        if line == 25:
            raise RuntimeError("broken")
        return b"x" * CHUNK_BYTES

    store.batches.claim_finalisation(WORKER, EXPIRES_S)
    with pytest.raises(RuntimeError, match="broken"):
        store.batches.finalise(batch.id, WORKER, EXPIRES_S, breaks)
    assert rows_of(store, file_chunks) > before
    assert len(store.files.list(OWNER, EXPIRES_S).data) == 1, "nothing of it is visible"
    assert store.batches.get(OWNER, batch.id).status == "finalizing"
    if given_up:
        store.batches.give_up(batch.id, WORKER)
        assert rows_of(store, file_chunks) == before
    ended = finalise(store, EXPIRES_S)
    assert ended.status == "expired"
    assert len(lines_of(store, OWNER, ended.error_file_id, EXPIRES_S)) == 30
