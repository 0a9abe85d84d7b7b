"""Files, as their owners see them, and their bytes, written and read as streams. The database holds
those in rows of 1 MiB, so servers that share the database need no shared disk. What an owner stores
in all is limited."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from deferred.entities import OPEN_STATUSES, Batch, File, FileChunk, Order, Page, StoredResponse
from deferred.errors import (
    FileTooLargeError,
    NotFoundError,
    QuotaExceededError,
    StoreUnavailableError,
)
from deferred.store.database import Database, find_owned, page_of

CHUNK_BYTES = 2**20
ABANDONED_S = 24 * 3600  # an upload or a finalisation that is unfinished for so long never ends
CHUNKS_A_COMMIT = 16  # removed by a sweep

Transaction = Callable[[bool], AbstractContextManager[Session]]  # durable or not


class FileWriter:
    """A file that is being written: first a row in `uploading`, then chunks, then the end, each in
    a transaction of its own. At most 2 MiB besides the current piece are in memory."""

    def __init__(
        self,
        transaction: Transaction,
        file_id: str,
        owner: str,
        purpose: str,
        filename: str,
        now_s: float,
        max_bytes: int | None = None,
    ) -> None:
        added = insert(File).values(
            id=file_id,
            owner=owner,
            purpose=purpose,
            filename=filename,
            state="uploading",
            size_bytes=0,
            sha256="",
            created_at=now_s,
        )
        with transaction(False) as session:
            self.number = session.scalars(added.returning(File.number)).one()
        self.size_bytes = 0
        self._transaction = transaction
        self._max_bytes = max_bytes
        self._sha256 = hashlib.sha256()
        self._rest = bytearray()
        self._seq = 0

    def write(self, piece: bytes) -> bool:
        """Whether that took a transaction. Raises FileTooLargeError, QuotaExceededError."""
        self.size_bytes += len(piece)
        if self._max_bytes is not None and self.size_bytes > self._max_bytes:
            raise FileTooLargeError(f"the file has more than {self._max_bytes} bytes")
        self._sha256.update(piece)
        self._rest += piece
        if len(self._rest) < CHUNK_BYTES:
            return False
        with self._transaction(False) as session:
            while len(self._rest) >= CHUNK_BYTES:
                self._store(session)
            session.execute(
                update(File)
                .where(File.number == self.number)
                .values(size_bytes=self._seq * CHUNK_BYTES)
            )
        return True

    def end(self, now_s: float, expires_at: float | None = None) -> File:
        """As `finish`, in a transaction. Raises QuotaExceededError."""
        with self._transaction(True) as session:
            return self.finish(session, now_s, expires_at)

    def finish(self, session: Session, now_s: float, expires_at: float | None) -> File:
        """Stores the rest and makes the file visible, with `now_s` as its time of creation."""
        if self._rest:
            self._store(session)
        file = session.scalars(
            update(File)
            .where(File.number == self.number, File.state == "uploading")
            .values(
                state="ready",
                size_bytes=self.size_bytes,
                sha256=self._sha256.hexdigest(),
                created_at=now_s,
                expires_at=expires_at,
            )
            .returning(File)
        ).one_or_none()
        if file is None:
            raise StoreUnavailableError("the upload took too long and was removed; send it again")
        return file

    def give_up(self) -> None:
        """Marks the file for the next sweep, which need not wait for ABANDONED_S."""
        gone = update(File).where(File.number == self.number, File.state == "uploading")
        with contextlib.suppress(StoreUnavailableError), self._transaction(False) as session:
            session.execute(gone.values(state="deleted"))

    def _store(self, session: Session) -> None:
        data = bytes(self._rest[:CHUNK_BYTES])
        session.execute(insert(FileChunk).values(file=self.number, seq=self._seq, data=data))
        del self._rest[:CHUNK_BYTES]
        self._seq += 1


class Files:
    """Each file belongs to an owner (a hash of the API key; "" without keys), and only the owner
    sees it. A file becomes visible when its upload is complete and invisible when it expires."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(
        self,
        owner: str,
        purpose: str,
        filename: str,
        now_s: float,
        *,
        max_bytes: int | None = None,
        quota_bytes: int | None = None,
    ) -> FileWriter:
        """Then `write` its pieces, of any size, and `end` it, or `give_up`.

        Raises QuotaExceededError if the owner would store more than `quota_bytes`, as the writer
        does.
        """

        @contextlib.contextmanager
        def within_quota(durable: bool) -> Iterator[Session]:
            with self._database.write(durable=durable) as session:
                yield session
                require_quota(session, owner, quota_bytes)

        return FileWriter(within_quota, new_file_id(), owner, purpose, filename, now_s, max_bytes)

    def get(self, owner: str, file_id: str, now_s: float) -> File:
        """Raises NotFoundError."""
        with self._database.read() as session:
            return find_file(session, owner, file_id, now_s)

    def list(
        self,
        owner: str,
        now_s: float,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 10_000,
        order: Order = "desc",
    ) -> Page[File]:
        """In the order of creation. Raises NotFoundError if `after` is not a file of this owner."""
        of_purpose = [] if purpose is None else [File.purpose == purpose]
        with self._database.read() as session:
            last = None if after is None else find_file(session, owner, after, now_s).number
            which = _visible(now_s), *of_purpose
            return page_of(session, File, owner, *which, last=last, limit=limit, order=order)

    def delete(self, owner: str, file_id: str, now_s: float) -> None:
        """Makes the file invisible; a sweep removes its bytes. Batches that were created from it
        are not harmed: the bytes stay until validation has copied the lines.

        Raises NotFoundError.
        """
        with self._database.write(durable=True) as session:
            find_file(session, owner, file_id, now_s, lock=True).state = "deleted"

    def content(self, owner: str, file_id: str, now_s: float) -> Iterator[bytes]:
        """The bytes in pieces of at most 1 MiB. Raises NotFoundError, also from the iterator if the
        file is deleted and swept meanwhile."""
        return read_chunks(self._database, self.get(owner, file_id, now_s))

    def sweep(self, now_s: float, rest: Callable[[], None]) -> bool:
        """Removes one deleted, expired or abandoned file that no batch in `validating` needs;
        False if there is none. `rest` is called between transactions."""
        over = or_(
            and_(File.state == "ready", File.expires_at <= now_s),
            and_(File.state == "uploading", File.created_at < now_s - ABANDONED_S),
        )
        with self._database.write(durable=False) as session:
            session.execute(update(File).where(over).values(state="deleted"))
        needed = select(Batch.input_file).where(Batch.status == "validating")
        with self._database.read() as session:
            number = session.scalars(
                select(File.number)
                .where(File.state == "deleted", File.number.not_in(needed))
                .order_by(File.number)
                .limit(1)
            ).first()
        if number is None:
            return False
        while self._remove_some(number):
            rest()
        return True

    def _remove_some(self, number: int) -> bool:
        with self._database.write(durable=False) as session:
            # `Batches.create` holds this lock while it creates a batch from the file
            session.execute(select(File.id).where(File.number == number).with_for_update())
            needed = select(Batch.number).where(
                Batch.status == "validating", Batch.input_file == number
            )
            if session.execute(needed.limit(1)).first():
                return False
            return remove_chunks(session, number, CHUNKS_A_COMMIT)


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def find_file(
    session: Session, owner: str, file_id: str, now_s: float, *, lock: bool = False
) -> File:
    """Raises NotFoundError. `lock`: no sweep removes it before the transaction ends."""
    return find_owned(session, File, owner, file_id, _visible(now_s), lock=lock)


def _visible(now_s: float) -> ColumnElement[bool]:
    return and_(File.state == "ready", or_(File.expires_at.is_(None), File.expires_at > now_s))


def read_chunks(database: Database, file: File) -> Iterator[bytes]:
    for seq in range(-(-file.size_bytes // CHUNK_BYTES)):
        with database.read() as session:
            data = session.scalars(
                select(FileChunk.data).where(FileChunk.file == file.number, FileChunk.seq == seq)
            ).first()
        if data is None:
            raise NotFoundError(f"file {file.id} was removed while it was read")
        yield data


def remove_chunks(session: Session, number: int, limit: int) -> bool:
    """Removes up to `limit` chunks of a file, and its row with the last one. Returns True if there
    may be more."""
    seqs = session.scalars(
        select(FileChunk.seq).where(FileChunk.file == number).order_by(FileChunk.seq).limit(limit)
    ).all()
    session.execute(delete(FileChunk).where(FileChunk.file == number, FileChunk.seq.in_(seqs)))
    if len(seqs) < limit:
        session.execute(delete(File).where(File.number == number))
    return len(seqs) == limit


def stored_bytes(session: Session, owner: str) -> int:
    """The size of the owner's files, including uploads and excluding deleted files, of the lines
    and results of batches that have not ended, and of responses."""
    sums = (
        (File.size_bytes, File.owner, File.state.in_(["uploading", "ready"])),
        (Batch.stored_bytes, Batch.owner, Batch.status.in_(OPEN_STATUSES)),
        (StoredResponse.size_bytes, StoredResponse.owner),
    )
    queries = (
        select(func.coalesce(func.sum(size), 0)).where(whose == owner, *which)
        for size, whose, *which in sums
    )
    return sum(int(session.execute(query).scalar_one()) for query in queries)


def require_quota(
    session: Session, owner: str, most_bytes: int | None, further_bytes: int = 0
) -> None:
    """Call it after a change, in the same transaction, or before one that stores further bytes.
    Raises QuotaExceededError."""
    if most_bytes is None:
        return
    stored = stored_bytes(session, owner) + further_bytes
    if stored > most_bytes:
        raise QuotaExceededError(
            f"files, batches and responses would take {stored} bytes, at most {most_bytes} are "
            "allowed (--max-stored-bytes): delete some, or wait until batches have ended"
        )
