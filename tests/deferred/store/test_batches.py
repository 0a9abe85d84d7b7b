"""Batches: whose they are, who validates them, and how each kind of end counts its lines."""

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


def test_a_new_batch_says_what_was_asked_for_and_to_its_owner_alone(store: JobStore) -> None:
    metadata = {"run": "é\0"}
    spec = NewBatch(upload(store), "/v1/chat/completions", MODEL, "24h", metadata, 9.0)
    batch = store.batches.create(OWNER, spec, NOW_S, expires_at=EXPIRES_S)
    assert store.batches.get(OWNER, batch.id) == batch
    assert (batch.spec, batch.status) == (spec, "validating")
    assert (batch.created_at, batch.expires_at) == (NOW_S, EXPIRES_S)
    assert (batch.counts, batch.usage, batch.errors) == (RequestCounts(), Usage(), ())
    for call in (
        lambda: store.batches.create("other", spec, NOW_S, expires_at=EXPIRES_S),
        lambda: store.batches.get("other", batch.id),
        lambda: store.batches.cancel("other", batch.id, NOW_S),
        lambda: store.batches.list("other", after=batch.id),
    ):
        with pytest.raises(NotFoundError):
            call()


def test_an_idempotency_key_makes_one_batch_of_a_repeated_request(store: JobStore) -> None:
    spec = NewBatch(upload(store), "/v1/completions", MODEL, "24h")

    def ask(spec: NewBatch, key: str | None = "k", owner: str = OWNER):
        return store.batches.create(owner, spec, NOW_S, expires_at=EXPIRES_S, idempotency_key=key)

    first = ask(spec)
    others = replace(spec, input_file_id=upload(store, owner="other"))
    store.batches.cancel(OWNER, first.id, NOW_S)
    assert len({ask(spec, None).id, ask(spec, None).id, ask(others, owner="other").id}) == 3
    store.files.delete(OWNER, spec.input_file_id, NOW_S)
    assert ask(spec) == store.batches.get(OWNER, first.id), "as it is now, even without its file"
    with pytest.raises(IdempotencyMismatchError, match=first.id):
        ask(replace(spec, endpoint="/v1/chat/completions"))


def test_batches_are_listed_in_pages_the_newest_first(store: JobStore) -> None:
    made = [create(store) for _ in range(5)]
    create(store, owner="other")
    first = store.batches.list(OWNER, limit=3)
    assert (first.data, first.has_more) == (tuple(made[:1:-1]), True)
    rest = store.batches.list(OWNER, after=first.data[-1].id, limit=2)
    assert (rest.data, rest.has_more) == (tuple(made[1::-1]), False)


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
