"""Files: what comes back, whose they are, when they go, and how much an owner may store."""

import hashlib
import itertools
import random
from collections.abc import Iterator

import pytest

from deferred.entities import File, NewBatch, Order, Result
from deferred.errors import FileTooLargeError, NotFoundError, QuotaExceededError
from deferred.store import JobStore
from deferred.store.files import ABANDONED_S
from deferred.store.quota import stored_bytes
from deferred.store.schema import CHUNK_BYTES, file_chunks
from tests.deferred import jobs
from tests.deferred.jobs import EXPIRES_S, MODEL, NOW_S, OWNER, WORKER, create, rows_of

QUOTA = 2 * CHUNK_BYTES
NAME = "a\0b \U0001f600 é"  # holds what a database cannot


def upload(store: JobStore, size: int = 1, owner: str = OWNER, **options) -> File:
    pieces = [b"x" * min(1000, size - start) for start in range(0, size, 1000)]
    return store.files.create(owner, "batch", "x", pieces, NOW_S, **options)


def require_gone(store: JobStore, file: File, owner: str = OWNER, now_s: float = NOW_S) -> None:
    for call in (store.files.get, store.files.content, store.files.delete):
        with pytest.raises(NotFoundError):
            call(owner, file.id, now_s)


@pytest.mark.parametrize(
    "size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17]
)
def test_a_file_comes_back_as_it_was_sent_whatever_its_pieces(store: JobStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    cuts = sorted(random.Random(1).choices(range(size + 1), k=4))
    pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, size])]
    file = store.files.create(OWNER, "batch", NAME, pieces, NOW_S, expires_at=lambda: NOW_S + 5)
    assert store.files.get(OWNER, file.id, NOW_S) == file
    sha256 = hashlib.sha256(data).hexdigest()
    assert file == File(file.id, OWNER, "batch", NAME, size, sha256, NOW_S, NOW_S + 5)
    read = list(store.files.content(OWNER, file.id, NOW_S))
    assert b"".join(read) == data
    assert all(len(piece) <= CHUNK_BYTES for piece in read)


def test_files_are_listed_in_pages_in_both_orders_and_by_purpose(store: JobStore) -> None:
    made = [upload(store).id for _ in range(5)]
    orders: dict[Order, list[str]] = {"asc": made, "desc": made[::-1]}
    for order, expected in orders.items():
        found: list[str] = []
        after, more = None, True
        while more:
            page = store.files.list(OWNER, NOW_S, after=after, limit=2, order=order)
            found += [file.id for file in page.data]
            after, more = found[-1], page.has_more
        assert found == expected
    other = store.files.create(OWNER, "user_data", "x", [b"x"], NOW_S)
    page = store.files.list(OWNER, NOW_S, purpose="user_data")
    assert (page.data, page.has_more) == ((other,), False)


def test_an_owner_sees_no_file_of_another(store: JobStore) -> None:
    file = upload(store)
    assert store.files.list("other", NOW_S).data == ()
    require_gone(store, file, "other")
    for owner, after in (("other", file.id), (OWNER, "file-unknown")):
        with pytest.raises(NotFoundError, match=after):
            store.files.list(owner, NOW_S, after=after)
    assert store.files.get(OWNER, file.id, NOW_S) == file


def test_a_file_at_its_limit_is_taken_and_one_byte_more_leaves_nothing(store: JobStore) -> None:
    limit = 3 * CHUNK_BYTES
    assert upload(store, limit, max_bytes=limit)
    with pytest.raises(FileTooLargeError, match=str(limit)):
        upload(store, limit + 1, max_bytes=limit)
    assert len(store.files.list(OWNER, NOW_S).data) == 1
    store.sweep(NOW_S, 0.0)
    assert rows_of(store, file_chunks) == 3


def test_an_upload_that_breaks_off_is_never_seen_and_swept_and_so_is_one_without_an_end(
    store: JobStore,
) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 2 * CHUNK_BYTES
        assert store.files.list(OWNER, NOW_S).data == ()
        raise ConnectionResetError

    def endless() -> Iterator[bytes]:
        yield b"x" * CHUNK_BYTES
        assert store.sweep(NOW_S + ABANDONED_S, 0.0).files == 0
        assert store.sweep(NOW_S + ABANDONED_S + 1, 0.0).files == 1
        yield b"x"

    with pytest.raises(ConnectionResetError):
        store.files.create(OWNER, "batch", "x", broken(), NOW_S)
    assert store.files.list(OWNER, NOW_S).data == ()
    assert rows_of(store, file_chunks) > 0
    assert store.sweep(NOW_S, 0.0).files == 1
    with pytest.raises(Exception, match="removed"):
        store.files.create(OWNER, "batch", "x", endless(), NOW_S)
    assert rows_of(store, file_chunks) == 0


def test_a_deleted_file_is_gone_at_once_and_its_bytes_after_a_sweep(store: JobStore) -> None:
    file, kept = upload(store, CHUNK_BYTES * 20), upload(store)
    content = store.files.content(OWNER, file.id, NOW_S)
    next(content)
    store.files.delete(OWNER, file.id, NOW_S)
    require_gone(store, file)
    assert store.files.list(OWNER, NOW_S).data == (kept,)
    assert store.sweep(NOW_S, 0.0).files == 1
    assert rows_of(store, file_chunks) == 1
    with pytest.raises(NotFoundError):
        next(content)  # rather than that a reader gets less


def test_an_expired_file_is_gone_at_that_moment(store: JobStore) -> None:
    file = upload(store, expires_at=lambda: NOW_S + 1)
    assert store.files.get(OWNER, file.id, NOW_S + 0.9) == file
    require_gone(store, file, now_s=NOW_S + 1)
    assert store.sweep(NOW_S + 0.9, 0.0).files == 0
    assert store.sweep(NOW_S + 1, 0.0).files == 1
    assert rows_of(store, file_chunks) == 0


def test_a_deleted_input_file_stays_readable_until_its_batch_is_validated(store: JobStore) -> None:
    batch = create(store)
    store.files.delete(OWNER, batch.spec.input_file_id, NOW_S)
    assert store.sweep(NOW_S, 0.0).files == 0
    claimed = store.batches.claim_validation(WORKER, MODEL, NOW_S)
    assert claimed is not None
    assert b"".join(store.batches.input(claimed)) == b"a\n"
    store.batches.start(batch.id, WORKER, NOW_S)
    assert store.sweep(NOW_S, 0.0).files == 1
    assert rows_of(store, file_chunks) == 0
    with pytest.raises(NotFoundError):
        store.batches.input(claimed)


# --- the quota: files, and what batches copy of them ------------------------------------------


def stored(store: JobStore) -> int:
    with store._database.read() as connection:
        return stored_bytes(connection, OWNER)


def batch_of(store: JobStore, file: File) -> str:
    spec = NewBatch(file.id, "/v1/completions", MODEL, "24h")
    batch = store.batches.create(
        OWNER, spec, NOW_S, expires_at=EXPIRES_S, quota_bytes=QUOTA, idempotency_key=file.id
    )
    return batch.id


def test_an_upload_beyond_the_quota_is_refused_and_takes_no_space(store: JobStore) -> None:
    kept = upload(store, CHUNK_BYTES, quota_bytes=QUOTA)
    with pytest.raises(QuotaExceededError, match=rf"at most {QUOTA} .*--max-stored-bytes"):
        upload(store, CHUNK_BYTES + 1, quota_bytes=QUOTA)
    assert stored(store) == CHUNK_BYTES
    upload(store, QUOTA, "another", quota_bytes=QUOTA)
    assert store.files.list(OWNER, NOW_S).data == (kept,)
    upload(store, CHUNK_BYTES, quota_bytes=QUOTA)
    assert stored(store) == QUOTA
    store.files.delete(OWNER, kept.id, NOW_S)
    upload(store, CHUNK_BYTES, quota_bytes=QUOTA)


def test_an_upload_is_refused_while_it_comes_and_others_that_come_at_once_count(
    store: JobStore,
) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1000
            yield b"x" * 1000

    def together() -> Iterator[bytes]:
        yield from [b"x" * 1000] * (QUOTA // 1000)
        upload(store, CHUNK_BYTES // 2, quota_bytes=QUOTA)

    for content in (endless(), together()):
        with pytest.raises(QuotaExceededError):
            store.files.create(OWNER, "batch", "x", content, NOW_S, quota_bytes=QUOTA)
    assert taken < QUOTA + 2 * CHUNK_BYTES


def test_a_batch_counts_with_its_copy_of_the_file_until_it_ends(store: JobStore) -> None:
    file, other = upload(store, QUOTA // 2), upload(store)
    batch_id = batch_of(store, other)
    with pytest.raises(QuotaExceededError):
        batch_of(store, file)
    assert stored(store) == QUOTA // 2 + 2
    assert len(store.batches.list(OWNER).data) == 1, "nothing is left of what was refused"
    assert batch_of(store, other) == batch_id, "a repeated call makes no second batch"
    store.batches.end_due(EXPIRES_S)
    jobs.finalise(store)
    assert stored(store) == QUOTA // 2 + 1
    store.files.delete(OWNER, other.id, NOW_S)
    batch_of(store, file)


def test_results_count_but_are_never_refused(store: JobStore) -> None:
    batch_id = batch_of(store, upload(store, 10))
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S) is not None
    store.items.add(batch_id, WORKER, jobs.new_items(1))
    store.batches.start(batch_id, WORKER, NOW_S)
    (item,) = jobs.claim(store, 1)
    assert store.items.save(WORKER, [Result(item.lease, True, b"x" * QUOTA)]) == 1
    assert stored(store) == 2 * 10 + QUOTA
    with pytest.raises(QuotaExceededError):
        upload(store, quota_bytes=QUOTA)
    assert jobs.finalise(store).status == "completed"
    assert stored(store) == 10 + QUOTA + 1
