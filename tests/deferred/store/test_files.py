"""Files: what comes back, whose they are, when they go, and how much an owner may store."""

import hashlib
import itertools
import random
from collections.abc import Iterator

import pytest

from deferred.entities import File, FileChunk, LineResult, NewBatch
from deferred.errors import FileTooLargeError, NotFoundError, QuotaExceededError
from deferred.store import JobStore
from deferred.store.files import ABANDONED_S, CHUNK_BYTES, stored_bytes
from tests.deferred import jobs
from tests.deferred.jobs import (
    EXPIRES_S,
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    create,
    rows_of,
    shown,
    swept,
    write,
)

QUOTA = 2 * CHUNK_BYTES
NAME = "a\0b \U0001f600 é"  # holds what a database cannot


def upload(store: JobStore, size: int = 1, owner: str = OWNER, **options) -> File:
    pieces = [b"x" * min(1000, size - start) for start in range(0, size, 1000)]
    return write(store, pieces, owner, **options)


def require_gone(store: JobStore, file: File, now_s: float = NOW_S) -> None:
    for call in (store.files.get, store.files.content, store.files.delete):
        with pytest.raises(NotFoundError):
            call(OWNER, file.id, now_s)


@pytest.mark.parametrize("size", [0, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 17])
def test_a_file_comes_back_as_it_was_sent_whatever_its_pieces(store: JobStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    cuts = sorted(random.Random(1).choices(range(size + 1), k=4))
    pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, size])]
    file = write(store, pieces, name=NAME, expires_at=NOW_S + 5)
    assert shown(store.files.get(OWNER, file.id, NOW_S)) == shown(file)
    sha256 = hashlib.sha256(data).hexdigest()
    assert (file.owner, file.purpose, file.filename) == (OWNER, "batch", NAME)
    assert (file.size_bytes, file.sha256) == (size, sha256)
    assert (file.created_at, file.expires_at) == (NOW_S, NOW_S + 5)
    read = list(store.files.content(OWNER, file.id, NOW_S))
    assert b"".join(read) == data
    assert all(len(piece) <= CHUNK_BYTES for piece in read)


def test_a_file_at_its_limit_is_taken_and_one_byte_more_leaves_nothing(store: JobStore) -> None:
    limit = 3 * CHUNK_BYTES
    assert upload(store, limit, max_bytes=limit)
    with pytest.raises(FileTooLargeError, match=str(limit)):
        upload(store, limit + 1, max_bytes=limit)
    assert len(store.files.list(OWNER, NOW_S).data) == 1
    store.sweep(NOW_S, 0.0)
    assert rows_of(store, FileChunk) == 3


def test_an_upload_that_breaks_off_or_never_ends_is_not_seen_and_swept(store: JobStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 2 * CHUNK_BYTES
        assert store.files.list(OWNER, NOW_S).data == ()
        raise ConnectionResetError

    def endless() -> Iterator[bytes]:
        yield b"x" * CHUNK_BYTES
        assert swept(store, File, NOW_S + ABANDONED_S) == 0
        assert swept(store, File, NOW_S + ABANDONED_S + 1) == 1
        yield b"x"

    with pytest.raises(ConnectionResetError):
        write(store, broken())
    assert rows_of(store, FileChunk) > 0
    assert swept(store, File, NOW_S) == 1
    with pytest.raises(Exception, match="removed"):
        write(store, endless())
    assert rows_of(store, FileChunk) == 0
    assert store.files.list(OWNER, NOW_S).data == ()


def test_a_deleted_or_expired_file_is_gone_at_once_and_its_bytes_after_a_sweep(
    store: JobStore,
) -> None:
    file, kept = upload(store, CHUNK_BYTES * 20), upload(store, expires_at=NOW_S + 1)
    content = store.files.content(OWNER, file.id, NOW_S)
    next(content)
    store.files.delete(OWNER, file.id, NOW_S)
    require_gone(store, file)
    assert [one.id for one in store.files.list(OWNER, NOW_S + 0.9).data] == [kept.id]
    assert swept(store, File, NOW_S + 0.9) == 1
    assert rows_of(store, FileChunk) == 1
    with pytest.raises(NotFoundError):
        next(content)  # rather than that a reader gets less
    require_gone(store, kept, now_s=NOW_S + 1)
    assert swept(store, File, NOW_S + 1) == 1
    assert rows_of(store, FileChunk) == 0


def test_a_deleted_input_file_stays_readable_until_its_batch_is_validated(store: JobStore) -> None:
    batch = create(store)
    store.files.delete(OWNER, batch.input_file_id, NOW_S)
    assert swept(store, File, NOW_S) == 0
    claimed = store.batches.claim_validation(WORKER, MODEL, NOW_S)
    assert claimed is not None
    assert b"".join(store.batches.input(claimed)) == b"a\n"
    store.batches.start(batch.id, WORKER, NOW_S)
    assert swept(store, File, NOW_S) == 1
    with pytest.raises(NotFoundError):
        store.batches.input(claimed)


# --- the quota: files, and what batches copy of them ------------------------------------------


def stored(store: JobStore) -> int:
    with store._database.read() as connection:
        return stored_bytes(connection, OWNER)


def test_an_upload_beyond_the_quota_is_refused_while_it_comes(store: JobStore) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1000
            yield b"x" * 1000

    def together() -> Iterator[bytes]:
        """With another that comes at once."""
        yield from [b"x" * 1000] * (QUOTA // 1000)
        upload(store, CHUNK_BYTES // 2, quota_bytes=QUOTA)

    for content in (endless(), together()):
        with pytest.raises(QuotaExceededError, match=rf"at most {QUOTA} .*--max-stored-bytes"):
            write(store, content, quota_bytes=QUOTA)
    assert taken < QUOTA + 2 * CHUNK_BYTES
    (other,) = store.files.list(OWNER, NOW_S).data
    assert stored(store) == other.size_bytes == CHUNK_BYTES // 2
    upload(store, QUOTA - CHUNK_BYTES // 2, quota_bytes=QUOTA)
    upload(store, QUOTA, "another", quota_bytes=QUOTA)
    assert stored(store) == QUOTA
    store.files.delete(OWNER, other.id, NOW_S)
    upload(store, CHUNK_BYTES // 2, quota_bytes=QUOTA)


def test_a_batch_counts_with_its_lines_until_it_ends_and_results_are_never_refused(
    store: JobStore,
) -> None:
    def ask(file: File) -> str:
        spec = NewBatch(file.id, "/v1/completions", MODEL, "24h")
        batch = store.batches.create(
            OWNER, spec, NOW_S, expires_at=EXPIRES_S, quota_bytes=QUOTA, idempotency_key=file.id
        )
        return batch.id

    large, small = upload(store, QUOTA // 2), upload(store, 10)
    batch_id = ask(small)
    with pytest.raises(QuotaExceededError):
        ask(large)
    assert len(store.batches.list(OWNER).data) == 1, "nothing is left of what was refused"
    assert ask(small) == batch_id, "a repeated call makes no second batch"
    assert stored(store) == QUOTA // 2 + 2 * 10
    assert store.batches.claim_validation(WORKER, MODEL, NOW_S) is not None
    store.items.add(batch_id, WORKER, jobs.new_items(1))
    store.batches.start(batch_id, WORKER, NOW_S)
    (item,) = jobs.claim(store, 1)
    assert store.items.save(WORKER, [LineResult(item.lease, True, b"x" * QUOTA)]) == 1
    assert stored(store) == QUOTA // 2 + 2 * 10 + QUOTA
    with pytest.raises(QuotaExceededError):
        upload(store, quota_bytes=QUOTA)
    assert store.batches.claim_finalisation(WORKER, NOW_S) is not None
    ended = store.batches.finalise(batch_id, WORKER, NOW_S, jobs.unrun)
    assert ended.status == "completed"
    assert stored(store) == QUOTA // 2 + 10 + QUOTA + 1
