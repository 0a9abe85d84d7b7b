from dataclasses import replace
from typing import get_args

import pytest

from deferred.entities import ItemState, LineError, NewBatch, Progress, RequestCounts, Usage
from deferred.errors import (
    IdempotencyMismatchError,
    LeaseLostError,
    NotFoundError,
    StatusConflictError,
)
from deferred.store import JobStore
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
    new_items,
    save,
    started,
    upload,
    validating,
)


def spec_of(store: JobStore, **changes) -> NewBatch:
    metadata = {"run": "é\0"}
    spec = NewBatch(upload(store), "/v1/chat/completions", MODEL, "24h", metadata, 9.0)
    return replace(spec, **changes)


def test_a_new_batch_is_validating_and_says_what_was_asked_for(store: JobStore) -> None:
    spec = spec_of(store)
    batch = store.batches.create(OWNER, spec, NOW_S, expires_at=EXPIRES_S)
    assert store.batches.get(OWNER, batch.id) == batch
    assert batch.spec == spec
    assert (batch.status, batch.created_at, batch.expires_at) == ("validating", NOW_S, EXPIRES_S)
    assert (batch.counts, batch.usage, batch.errors) == (RequestCounts(), Usage(), ())
    assert batch.output_file_id is batch.error_file_id is None
    assert batch.in_progress_at is None


def test_a_batch_and_its_input_file_are_their_owners_alone(store: JobStore) -> None:
    batch = create(store)
    for call in (
        lambda: store.batches.create("other", batch.spec, NOW_S, expires_at=EXPIRES_S),
        lambda: store.batches.get("other", batch.id),
        lambda: store.batches.cancel("other", batch.id, NOW_S),
        lambda: store.batches.list("other", after=batch.id),
    ):
        with pytest.raises(NotFoundError):
            call()


def test_an_idempotency_key_makes_one_batch_of_a_repeated_request(store: JobStore) -> None:
    spec = spec_of(store)

    def ask(owner: str = OWNER, key: str | None = "k", spec: NewBatch = spec):
        return store.batches.create(owner, spec, NOW_S, expires_at=EXPIRES_S, idempotency_key=key)

    first = ask()
    store.batches.cancel(OWNER, first.id, NOW_S)
    store.files.delete(OWNER, spec.input_file_id, NOW_S)
    assert ask() == store.batches.get(OWNER, first.id), "as it is now, even if its file is gone"
    with pytest.raises(IdempotencyMismatchError, match=first.id):
        ask(spec=replace(spec, endpoint="/v1/completions"))
    others = spec_of(store)
    assert len({ask(key=None, spec=others).id, ask(key=None, spec=others).id, first.id}) == 3
    theirs = store.files.create("other", "batch", "x", [b"x"], NOW_S)
    other = ask(owner="other", spec=replace(spec, input_file_id=theirs.id))
    assert other.id != first.id


def test_batches_are_listed_in_pages_the_newest_first(store: JobStore) -> None:
    made = [create(store) for _ in range(5)]
    create(store, owner="other")
    first = store.batches.list(OWNER, limit=3)
    assert first.data == tuple(made[:1:-1])
    assert first.has_more
    rest = store.batches.list(OWNER, after=first.data[-1].id, limit=3)
    assert rest.data == tuple(made[1::-1])
    assert not rest.has_more


def test_one_worker_at_a_time_validates_a_batch_and_the_oldest_first(store: JobStore) -> None:
    first, second = create(store), create(store)
    validated = [store.batches.claim_validation(w, MODEL, NOW_S) for w in ("a", "b", "c")]
    assert [batch and batch.id for batch in validated] == [first.id, second.id, None]
    with pytest.raises(LeaseLostError):
        store.items.add(first.id, "b", new_items(1))
    with pytest.raises(LeaseLostError):
        store.batches.start(first.id, "b", NOW_S)
    with pytest.raises(LeaseLostError):
        store.batches.fail(first.id, "b", [], NOW_S)
    store.batches.start(first.id, "a", NOW_S + 1)
    batch = store.batches.get(OWNER, first.id)
    assert (batch.status, batch.in_progress_at) == ("in_progress", NOW_S + 1)


def test_a_server_leaves_batches_of_another_model_alone(store: JobStore) -> None:
    create(store, model="another")
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S) is None
    started(store, 1, model="a third")
    assert claim(store, 1) == []


def test_a_validation_that_fell_silent_is_begun_anew_by_another(store: JobStore) -> None:
    batch = create(store)
    store.batches.claim_validation("a", MODEL, NOW_S)
    store.items.add(batch.id, "a", new_items(1200))
    store.items.heartbeat("a", [], NOW_S + 20)
    assert store.batches.claim_validation("b", MODEL, NOW_S + 20 + LEASE_S - 1) is None
    assert store.batches.claim_validation("b", MODEL, NOW_S + 20 + LEASE_S) is not None
    with pytest.raises(LeaseLostError):
        store.items.add(batch.id, "a", new_items(1, first=1201))
    store.items.add(batch.id, "b", new_items(3))
    store.batches.start(batch.id, "b", NOW_S)
    assert store.batches.get(OWNER, batch.id).counts.total == 3
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


def test_cancelling_ends_what_waits_and_lets_finish_what_runs(store: JobStore) -> None:
    batch = started(store, 5)
    done, running = claim(store, 1), claim(store, 2)
    save(store, done)
    cancelling = store.batches.cancel(OWNER, batch.id, NOW_S + 1)
    assert (cancelling.status, cancelling.cancelling_at) == ("cancelling", NOW_S + 1)
    assert cancelling.counts == RequestCounts(5, completed=1, cancelled=2)
    assert store.batches.cancel(OWNER, batch.id, NOW_S + 2) == cancelling
    assert claim(store, 9) == []
    assert store.batches.claim_finalisation(WORKER, NOW_S) is None
    assert save(store, running[:1]) == 1
    assert store.items.release(WORKER) == 1
    ended = finalise(store, NOW_S + 3)
    assert (ended.status, ended.cancelled_at) == ("cancelled", NOW_S + 3)
    assert ended.counts == RequestCounts(5, completed=2, cancelled=3)
    with pytest.raises(StatusConflictError, match="cancelled"):
        store.batches.cancel(OWNER, batch.id, NOW_S)


def test_a_batch_cancelled_while_it_is_validated_has_no_files(store: JobStore) -> None:
    batch = validating(store, 3)
    store.batches.cancel(OWNER, batch.id, NOW_S)
    with pytest.raises(LeaseLostError):
        store.items.add(batch.id, WORKER, new_items(3, first=4))
    with pytest.raises(LeaseLostError):
        store.batches.start(batch.id, WORKER, NOW_S)
    ended = finalise(store)
    assert (ended.status, ended.counts) == ("cancelled", RequestCounts())
    assert ended.output_file_id is ended.error_file_id is None
    assert store.sweep(NOW_S, 0.0).items == 3


@pytest.mark.parametrize("window_s", [10 * CANCELLING_S, CANCELLING_S / 10])
def test_running_lines_of_a_cancelled_batch_have_ten_minutes_of_its_window(
    store: JobStore, window_s: float
) -> None:
    batch = started(store, 3, expires_at=NOW_S + window_s)
    done, running = claim(store, 1), claim(store, 1)
    save(store, done)
    store.batches.cancel(OWNER, batch.id, NOW_S)
    end_s = NOW_S + min(window_s, CANCELLING_S)
    assert store.batches.end_due(end_s - 1) == 0
    assert store.batches.end_due(end_s) == 1
    assert store.batches.end_due(end_s) == 0
    assert save(store, running) == 0, "too late"
    ended = finalise(store, end_s)
    assert (ended.status, ended.counts) == ("cancelled", RequestCounts(3, completed=1, cancelled=2))


def test_at_the_end_of_its_window_all_that_is_not_done_expires(store: JobStore) -> None:
    batch = started(store, 4)
    done, running = claim(store, 1), claim(store, 1)
    save(store, done)
    assert store.batches.end_due(EXPIRES_S - 1) == 0
    assert store.batches.end_due(EXPIRES_S) == 1
    assert store.batches.end_due(EXPIRES_S) == 0
    assert save(store, running) == 0, "too late"
    assert claim(store, 9) == []
    with pytest.raises(StatusConflictError):
        store.batches.cancel(OWNER, batch.id, EXPIRES_S)
    ended = finalise(store, EXPIRES_S + 1)
    assert (ended.status, ended.finalizing_at, ended.expired_at) == (
        "expired",
        EXPIRES_S,
        EXPIRES_S + 1,
    )
    assert ended.counts == RequestCounts(4, completed=1, expired=3)
    assert ended.completed_at is None


def test_a_batch_done_in_time_but_not_yet_finalised_does_not_expire(store: JobStore) -> None:
    started(store, 1)
    save(store, claim(store, 1))
    assert store.batches.end_due(EXPIRES_S) == 0
    ended = finalise(store, EXPIRES_S + 1)
    assert (ended.status, ended.completed_at) == ("completed", EXPIRES_S + 1)


def test_a_batch_that_no_server_validated_in_time_expires(store: JobStore) -> None:
    create(store)
    assert store.batches.end_due(EXPIRES_S) == 1
    assert finalise(store, EXPIRES_S).status == "expired"


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
