import hashlib
import random

import pytest

from deferred.entities import Order
from deferred.errors import FileTooLargeError, NotFoundError
from deferred.store import JobStore
from deferred.store.files import ABANDONED_S
from deferred.store.schema import CHUNK_BYTES, file_chunks
from tests.deferred.jobs import MODEL, NOW_S, OWNER, WORKER, create, rows_of, upload


@pytest.mark.parametrize(
    "size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17]
)
def test_a_file_comes_back_as_it_was_sent_whatever_its_pieces(store: JobStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    cuts = sorted(random.Random(1).choices(range(size + 1), k=4))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    file = store.files.create(
        OWNER, "batch", "in.jsonl", pieces, NOW_S, expires_at=lambda: NOW_S + 5
    )
    assert store.files.get(OWNER, file.id, NOW_S) == file
    assert file.size_bytes == size
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert (file.purpose, file.filename) == ("batch", "in.jsonl")
    assert (file.created_at, file.expires_at) == (NOW_S, NOW_S + 5)
    read = list(store.files.content(OWNER, file.id, NOW_S))
    assert b"".join(read) == data
    assert all(len(piece) <= CHUNK_BYTES for piece in read)


def test_a_name_may_hold_what_a_database_cannot(store: JobStore) -> None:
    name = "a\0b \U0001f600 é"
    file = store.files.create(OWNER, "batch", name, [b"x"], NOW_S)
    assert store.files.get(OWNER, file.id, NOW_S).filename == name


def test_files_are_listed_in_pages_in_both_orders_and_by_purpose(store: JobStore) -> None:
    made = [upload(store) for _ in range(5)]
    orders: dict[Order, list[str]] = {"asc": made, "desc": made[::-1]}
    for order, expected in orders.items():
        found: list[str] = []
        after = None
        more = True
        while more:
            page = store.files.list(OWNER, NOW_S, after=after, limit=2, order=order)
            found += [file.id for file in page.data]
            after, more = found[-1], page.has_more
        assert found == expected
    other = store.files.create(OWNER, "user_data", "x", [b"x"], NOW_S)
    page = store.files.list(OWNER, NOW_S, purpose="user_data")
    assert page.data == (other,)
    assert not page.has_more


def test_an_owner_sees_no_file_of_another(store: JobStore) -> None:
    file_id = upload(store)
    assert store.files.list("other", NOW_S).data == ()
    for call in (store.files.get, store.files.content, store.files.delete):
        with pytest.raises(NotFoundError):
            call("other", file_id, NOW_S)
    for owner, after in (("other", file_id), (OWNER, "file-unknown")):
        with pytest.raises(NotFoundError, match=after):
            store.files.list(owner, NOW_S, after=after)
    assert store.files.get(OWNER, file_id, NOW_S).id == file_id


def test_a_file_at_its_limit_is_taken_and_one_byte_more_leaves_nothing(store: JobStore) -> None:
    pieces = [b"x" * CHUNK_BYTES] * 3
    limit = 3 * CHUNK_BYTES
    assert store.files.create(OWNER, "batch", "x", pieces, NOW_S, max_bytes=limit)
    with pytest.raises(FileTooLargeError, match=str(limit)):
        store.files.create(OWNER, "batch", "x", [*pieces, b"x"], NOW_S, max_bytes=limit)
    assert len(store.files.list(OWNER, NOW_S).data) == 1
    store.sweep(NOW_S, 0.0)
    assert rows_of(store, file_chunks) == 3


def test_an_upload_that_breaks_off_is_never_seen_and_swept(store: JobStore) -> None:
    def broken():
        yield b"x" * 2 * CHUNK_BYTES
        assert store.files.list(OWNER, NOW_S).data == ()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.files.create(OWNER, "batch", "x", broken(), NOW_S)
    assert store.files.list(OWNER, NOW_S).data == ()
    assert rows_of(store, file_chunks) > 0
    assert store.sweep(NOW_S, 0.0).files == 1
    assert rows_of(store, file_chunks) == 0


def test_an_upload_that_nobody_ends_is_swept_after_a_day(store: JobStore) -> None:
    def endless():
        yield b"x" * CHUNK_BYTES
        assert store.sweep(NOW_S + ABANDONED_S, 0.0).files == 0
        assert store.sweep(NOW_S + ABANDONED_S + 1, 0.0).files == 1
        yield b"x"

    with pytest.raises(Exception, match="removed"):
        store.files.create(OWNER, "batch", "x", endless(), NOW_S)
    assert rows_of(store, file_chunks) == 0


def test_a_deleted_file_is_gone_at_once_and_its_bytes_after_a_sweep(store: JobStore) -> None:
    file_id = upload(store, [b"x" * CHUNK_BYTES * 20])
    kept = upload(store)
    store.files.delete(OWNER, file_id, NOW_S)
    for call in (store.files.get, store.files.content, store.files.delete):
        with pytest.raises(NotFoundError):
            call(OWNER, file_id, NOW_S)
    assert [file.id for file in store.files.list(OWNER, NOW_S).data] == [kept]
    assert store.sweep(NOW_S, 0.0).files == 1
    assert rows_of(store, file_chunks) == 1


def test_an_expired_file_is_gone_at_that_moment(store: JobStore) -> None:
    file = store.files.create(OWNER, "batch", "x", [b"x"], NOW_S, expires_at=lambda: NOW_S + 1)
    assert store.files.get(OWNER, file.id, NOW_S + 0.9) == file
    with pytest.raises(NotFoundError):
        store.files.get(OWNER, file.id, NOW_S + 1)
    assert store.sweep(NOW_S + 0.9, 0.0).files == 0
    assert store.sweep(NOW_S + 1, 0.0).files == 1
    assert rows_of(store, file_chunks) == 0


def test_a_reader_whose_file_is_swept_is_told_rather_than_given_less(store: JobStore) -> None:
    file_id = upload(store, [b"x" * 2 * CHUNK_BYTES])
    content = store.files.content(OWNER, file_id, NOW_S)
    next(content)
    store.files.delete(OWNER, file_id, NOW_S)
    store.sweep(NOW_S, 0.0)
    with pytest.raises(NotFoundError):
        next(content)


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
