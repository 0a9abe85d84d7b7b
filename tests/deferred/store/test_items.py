"""Lines: which are taken, in which order they are claimed, and who may record their results."""

import threading

import pytest

from deferred.entities import Duplicate, NewItem, RequestCounts
from deferred.store import JobStore, open_store
from deferred.store.transitions import LEASE_S
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    claim,
    new_items,
    result,
    save,
    started,
    validating,
)


@pytest.mark.parametrize("custom_id", ["id-x", "a\0b", "é" * 5000])
def test_lines_whose_id_is_taken_are_named_with_the_first_of_that_id(
    store: JobStore, custom_id: str
) -> None:
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


def test_heartbeats_keep_leases_and_silence_loses_them(store: JobStore) -> None:
    started(store, 3)
    kept, forgotten, late = claim(store, 3)
    held = store.items.heartbeat(WORKER, [kept.lease, late.lease], NOW_S + 20)
    assert held == {kept.lease, late.lease}
    assert store.items.recover(NOW_S + LEASE_S - 1) == 0
    assert store.items.recover(NOW_S + LEASE_S) == 1
    (again,) = claim(store, 9, now_s=NOW_S + LEASE_S)
    assert again.line == forgotten.line
    assert again.lost == 1
    assert store.items.recover(NOW_S + 20 + LEASE_S) == 2
    assert save(store, [forgotten, late]) == 0, "late, though the same worker claimed one again"
    assert store.items.save("another worker", [result(again)]) == 0
    assert save(store, [again]) == 1
    claim(store, 2)
    assert store.items.release(WORKER) == 2
    assert {item.line: item.lost for item in claim(store, 9)} == {kept.line: 1, late.line: 1}
    assert store.items.heartbeat(WORKER, [kept.lease, forgotten.lease], NOW_S) == frozenset()


def test_lines_not_begun_when_their_batch_is_cancelled_are_withdrawn(store: JobStore) -> None:
    batch, other = started(store, 4), started(store, 2, expires_at=9000.0)
    items = claim(store, 5)
    elsewhere = claim(store, 1, worker="b")
    leases = [item.lease for item in items]
    waiting = [leases[0], leases[1], leases[4]]
    assert store.items.withdraw(WORKER, waiting) == frozenset()
    store.batches.cancel(OWNER, batch.id, NOW_S)
    assert store.items.withdraw(WORKER, waiting) == {leases[0], leases[1]}
    assert store.batches.get(OWNER, batch.id).counts == RequestCounts(4, cancelled=2)
    assert store.batches.get(OWNER, other.id).counts == RequestCounts(2)
    assert save(store, items) == 3, "what has begun may finish"
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
