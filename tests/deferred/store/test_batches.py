"""Batches and their lines, from validation to the files of results; the machine of
`test_properties.py` takes their steps in any order."""

import threading
from dataclasses import replace
from typing import Any, get_args

import pytest

from deferred.entities import (
    Batch,
    Duplicate,
    ItemState,
    LineError,
    NewBatch,
    NewItem,
    Progress,
    RequestCounts,
    Result,
    Usage,
)
from deferred.errors import (
    IdempotencyMismatchError,
    LeaseLostError,
    NotFoundError,
    StatusConflictError,
)
from deferred.store import JobStore, open_store
from deferred.store.schema import CHUNK_BYTES, file_chunks
from deferred.store.transitions import CANCELLING_S, LEASE_S
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    claim,
    create,
    finalise,
    ids,
    lines_of,
    new_items,
    result,
    rows_of,
    save,
    started,
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
    assert store.batches.get(OWNER, batch.id) == ask(NOW_S + 1) == batch
    other = replace(spec, endpoint="/v1/completions")
    with pytest.raises(IdempotencyMismatchError, match=batch.id):
        store.batches.create(OWNER, other, NOW_S, expires_at=EXPIRES_S, idempotency_key="k")
    assert (batch.spec, batch.status) == (spec, "validating")
    assert (batch.created_at, batch.expires_at) == (NOW_S, NOW_S + 9)
    assert (batch.counts, batch.usage, batch.errors) == (RequestCounts(), Usage(), ())


def test_a_batch_its_key_and_its_files_are_their_owners_alone(store: JobStore) -> None:
    file = upload(store)
    spec = NewBatch(file, "/v1/completions", MODEL, "24h")
    until: Any = {"expires_at": EXPIRES_S, "idempotency_key": "k"}
    batch = store.batches.create(OWNER, spec, NOW_S, **until)
    for call in (
        lambda: store.batches.create("other", spec, NOW_S, expires_at=EXPIRES_S),
        lambda: store.batches.get("other", batch.id),
        lambda: store.batches.cancel("other", batch.id, NOW_S),
        lambda: store.batches.list("other", after=batch.id),
        lambda: store.files.get("other", file, NOW_S),
        lambda: store.files.delete("other", file, NOW_S),
        lambda: store.files.list("other", NOW_S, after=file),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert (store.files.list("other", NOW_S).data, store.batches.list("other").data) == ((), ())
    theirs = replace(spec, input_file_id=upload(store, owner="other"))
    assert store.batches.create("other", theirs, NOW_S, **until).id != batch.id


def test_one_worker_at_a_time_validates_the_oldest_batch_of_its_model(store: JobStore) -> None:
    create(store, model="another")
    first, second = create(store), create(store)
    validated = [store.batches.claim_validation(w, MODEL, NOW_S) for w in "abc"]
    assert [batch and batch.id for batch in validated] == [first.id, second.id, None]
    store.items.add(first.id, "a", new_items(1200))
    with pytest.raises(LeaseLostError):
        store.items.add(first.id, "b", new_items(1))
    with pytest.raises(LeaseLostError):
        store.batches.start(first.id, "b", NOW_S)
    with pytest.raises(LeaseLostError):
        store.batches.fail(first.id, "b", [], NOW_S)
    silent_s = NOW_S + 20 + LEASE_S
    for worker in "ab":
        store.items.heartbeat(worker, [], NOW_S + 20)
    assert store.batches.claim_validation("c", MODEL, silent_s - 1) is None
    assert store.batches.claim_validation("c", MODEL, silent_s) is not None
    with pytest.raises(LeaseLostError):
        store.items.add(first.id, "a", new_items(1, first=1201))
    store.items.add(first.id, "c", new_items(3))
    store.batches.start(first.id, "c", NOW_S + 1)
    batch = store.batches.get(OWNER, first.id)
    assert (batch.status, batch.in_progress_at, batch.counts.total) == ("in_progress", NOW_S + 1, 3)
    assert store.items.claim("c", "another", 9, NOW_S) == []
    assert len(claim(store, 2000)) == 3


def test_a_failed_validation_says_why_and_runs_nothing(store: JobStore) -> None:
    batch = validating(store, 3)
    errors = [LineError("invalid_json_line", "not \0 JSON", 2), LineError("x", "y", param="body")]
    store.batches.fail(batch.id, WORKER, errors, NOW_S + 1)
    failed = store.batches.get(OWNER, batch.id)
    assert (failed.status, failed.failed_at, failed.errors) == ("failed", NOW_S + 1, tuple(errors))
    assert claim(store, 9) == []
    assert store.batches.claim_finalisation(WORKER, NOW_S) is None
    assert store.sweep(NOW_S, 0.0).items == 3
    with pytest.raises(StatusConflictError, match="failed"):
        store.batches.cancel(OWNER, batch.id, NOW_S)


@pytest.mark.parametrize(
    ("cancelled", "window_s"),
    [(True, 10 * CANCELLING_S), (True, CANCELLING_S / 10), (False, CANCELLING_S)],
)
def test_running_lines_end_with_the_window_or_ten_minutes_after_a_cancellation(
    store: JobStore, cancelled: bool, window_s: float
) -> None:
    batch = started(store, 4, expires_at=NOW_S + window_s)
    done, running = claim(store, 1), claim(store, 1)
    save(store, done)
    if cancelled:
        store.batches.cancel(OWNER, batch.id, NOW_S)
    end_s = NOW_S + min(window_s, CANCELLING_S)
    assert [store.batches.end_due(s) for s in (end_s - 1, end_s, end_s)] == [0, 1, 0]
    assert save(store, running) == 0, "too late"
    assert claim(store, 9) == []
    ended = finalise(store, end_s + 1)
    status = "cancelled" if cancelled else "expired"
    assert (ended.status, getattr(ended, f"{status}_at")) == (status, end_s + 1)
    assert ended.counts == RequestCounts(4, completed=1, **{status: 3})
    with pytest.raises(StatusConflictError, match=status):
        store.batches.cancel(OWNER, batch.id, end_s)


def test_only_what_is_not_done_in_its_window_expires(store: JobStore) -> None:
    done = started(store, 1)
    save(store, claim(store, 1))
    never = create(store)  # no server has validated it
    assert store.batches.end_due(EXPIRES_S) == 1
    assert [finalise(store, EXPIRES_S + 1).status for _ in range(2)] == ["completed", "expired"]
    assert store.batches.get(OWNER, done.id).completed_at == EXPIRES_S + 1
    assert store.batches.get(OWNER, never.id).finalizing_at == EXPIRES_S


def test_progress_counts_batches_and_items_of_all_owners(store: JobStore) -> None:
    zeros: dict[ItemState, int] = dict.fromkeys(get_args(ItemState), 0)
    assert store.progress() == Progress({}, zeros, None)
    started(store, 2, expires_at=EXPIRES_S - 1)
    save(store, claim(store, 2), succeeded=False)
    started(store, 10)
    save(store, claim(store, 3))
    claim(store, 2)
    cancelled = started(store, 4)
    store.batches.cancel(OWNER, cancelled.id, NOW_S)
    create(store, owner="other")
    assert store.progress() == Progress(
        {"validating": 1, "in_progress": 2, "cancelling": 1},
        {**zeros, "pending": 5, "running": 2, "completed": 3, "failed": 2, "cancelled": 4},
        EXPIRES_S,
    )


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


# --- lines -----------------------------------------------------------------------------------


def test_lines_whose_id_is_taken_are_named_with_the_first_of_that_id(store: JobStore) -> None:
    custom_id = "a\0b" + "é" * 5000
    batch_id = validating(store).id
    items = new_items(1100)
    items[0] = NewItem(1, custom_id, b"\x00\xff")
    items[2] = NewItem(3, custom_id, b"{}")  # in the same commit
    items[1099] = NewItem(1100, "id-2", b"{}")  # in a later one
    assert store.items.add(batch_id, WORKER, iter(items)) == [
        Duplicate(3, custom_id, 1),
        Duplicate(1100, "id-2", 2),
    ]
    again = [NewItem(2000, "id-700", b"{}"), NewItem(2001, "new", b"{}"), *items[:2]]
    assert store.items.add(batch_id, WORKER, again) == [Duplicate(2000, "id-700", 700)]
    assert claim(store, 9) == [], "before the validation has ended"
    store.batches.start(batch_id, WORKER, NOW_S)
    (item,) = claim(store, 1)
    assert (item.batch_id, item.line, item.custom_id) == (batch_id, 1, custom_id)
    assert (item.owner, item.endpoint, item.deadline) == (OWNER, "/v1/completions", EXPIRES_S)
    assert (item.body, item.lost) == (b"\x00\xff", 0)


def test_a_claim_takes_no_more_lines_than_asked_and_the_earliest_deadline_first(
    store: JobStore,
) -> None:
    late = started(store, 40, expires_at=9000.0)
    early = started(store, 40, expires_at=8000.0)
    expected = [(batch.id, line) for batch in (early, late) for line in range(1, 41)]
    claimed: list[tuple[str, int]] = []
    for n in (1, 7, 40, 0, 20, 50):
        got = claim(store, n)
        assert len(got) == min(n, 80 - len(claimed))
        claimed += [(item.batch_id, item.line) for item in got]
    assert claimed == expected


def sized(store: JobStore, sizes_bytes: list[int], expires_at: float = EXPIRES_S) -> str:
    """A batch in progress, of lines with such bodies."""
    bodies = enumerate(sizes_bytes, start=1)
    items = [NewItem(line, f"id-{line}", b"x" * size_bytes) for line, size_bytes in bodies]
    return started(store, items, expires_at=expires_at).id


def test_a_claim_takes_no_more_bytes_than_asked_but_one_line(store: JobStore) -> None:
    early = sized(store, [300, 100, 100, 100, 50, 60], expires_at=8000.0)
    late = sized(store, [140, 1], expires_at=9000.0)
    claimed = []
    while items := store.items.claim(WORKER, MODEL, 9, NOW_S, 200):
        claimed.append([(item.batch_id, item.line) for item in items])
    assert claimed == [
        [(early, 1)],
        [(early, 2), (early, 3)],
        [(early, 4), (early, 5)],
        [(early, 6), (late, 1)],
        [(late, 2)],
    ]
    sized(store, [2**20] * 10)
    assert len(claim(store, 64)) == 8, "where nothing is said of bytes"


def test_a_cancelled_batch_waits_for_lines_that_run_and_gets_back_those_not_begun(
    store: JobStore,
) -> None:
    batch, other = started(store, 5), started(store, 2, expires_at=9000.0)
    items = claim(store, 6)
    elsewhere = claim(store, 1, worker="b")
    leases = [item.lease for item in items]
    waiting = [leases[0], leases[1], leases[5]]
    assert store.items.withdraw(WORKER, waiting) == frozenset()
    cancelling = store.batches.cancel(OWNER, batch.id, NOW_S)
    assert store.batches.cancel(OWNER, batch.id, NOW_S + 2) == cancelling
    assert store.items.withdraw(WORKER, waiting) == {leases[0], leases[1]}
    assert store.batches.get(OWNER, batch.id).counts == RequestCounts(5, cancelled=2)
    assert store.batches.get(OWNER, other.id).counts == RequestCounts(2)
    assert store.batches.claim_finalisation(WORKER, NOW_S) is None
    assert save(store, [*items[:4], items[5]]) == 3, "what has begun may finish"
    assert store.items.release(WORKER) == 1
    assert finalise(store).counts == RequestCounts(5, completed=2, cancelled=3)
    assert store.items.save("b", [result(elsewhere[0])]) == 1


def test_stores_on_one_postgresql_claim_and_record_each_item_once(postgresql_url: str) -> None:
    """Two servers, two threads each, all after the same items."""
    stores = [open_store(postgresql_url) for _ in range(2)]
    batch = started(stores[0], 300)
    seen: list[int] = []
    failures: list[BaseException] = []

    def work(store: JobStore, worker: str) -> None:
        try:
            while items := claim(store, 7, worker=worker):
                counted = store.items.save(worker, [result(item) for item in items])
                assert counted == len(items)
                seen.extend(item.line for item in items)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(stores[i % 2], f"worker {i}")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # a thread may have found all that is left locked by the others, and ended
    work(stores[0], "worker 0")
    assert sorted(seen) == list(range(1, 301))
    assert stores[1].batches.get(OWNER, batch.id).counts == RequestCounts(300, completed=300)
    for store in stores:
        store.close()


# --- files of results ------------------------------------------------------------------------


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
