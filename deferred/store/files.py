"""Files, as their owners see them, and their bytes, written and read as streams. The database holds
those in rows of 1 MiB, so servers that share the database need no shared disk."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import ColumnElement, and_, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from deferred.entities import Batch, File, FileChunk, Order, Page
from deferred.errors import FileTooLargeError, NotFoundError, StoreUnavailableError
from deferred.store.database import Database
from deferred.store.quota import require_quota

CHUNK_BYTES = 2**20
ABANDONED_S = 24 * 3600  # an upload or a finalisation that is unfinished for so long never ends
CHUNKS_A_COMMIT = 16  # removed by a sweep


class FileWriter:
    """A file that is being written: first a row in `uploading`, then chunks, then the end. Methods
    with a `session` run in the caller's transaction."""

    def __init__(
        self,
        session: Session,
        file_id: str,
        owner: str,
        purpose: str,
        filename: str,
        now_s: float,
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
        self.number = session.scalars(added.returning(File.number)).one()
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._rest = bytearray()
        self._seq = 0

    def add(self, piece: bytes) -> bool:
        """Buffers a piece. Returns True if `flush` is due."""
        self._sha256.update(piece)
        self.size_bytes += len(piece)
        self._rest += piece
        return len(self._rest) >= CHUNK_BYTES

    def flush(self, session: Session) -> None:
        """Stores the full chunks."""
        while len(self._rest) >= CHUNK_BYTES:
            self._store(session)
        session.execute(
            update(File)
            .where(File.number == self.number)
            .values(size_bytes=self._seq * CHUNK_BYTES)
        )

    def finish(self, session: Session, now_s: float, expires_at: float | None) -> File:
        """Stores the rest and makes the file visible, with `now_s` as its time of creation."""
        self.flush(session)
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

    def create(
        self,
        owner: str,
        purpose: str,
        filename: str,
        content: Iterable[bytes],
        now_s: float,
        *,
        max_bytes: int | None = None,
        quota_bytes: int | None = None,
        expires_at: Callable[[], float] | None = None,
    ) -> File:
        """Stores `content` as it comes, in pieces of any size. At most 2 MiB besides the current
        piece are in memory. `expires_at` is called at its end.

        Exceptions of both pass through. A sweep removes what was stored by then.

        Raises:
            FileTooLargeError: more than `max_bytes`.
            QuotaExceededError: the owner would store more than `quota_bytes`.
        """
        with self._database.write(durable=False) as session:
            require_quota(session, owner, quota_bytes)
            writer = FileWriter(session, new_file_id(), owner, purpose, filename, now_s)
        try:
            for piece in content:
                if max_bytes is not None and writer.size_bytes + len(piece) > max_bytes:
                    raise FileTooLargeError(f"the file has more than {max_bytes} bytes")
                if writer.add(piece):
                    with self._database.write(durable=False) as session:
                        writer.flush(session)
                        require_quota(session, owner, quota_bytes)
            expiry = None if expires_at is None else expires_at()
            with self._database.write(durable=True) as session:
                file = writer.finish(session, now_s, expiry)
                require_quota(session, owner, quota_bytes)
                return file
        except BaseException:
            self._give_up(writer)
            raise

    def _give_up(self, writer: FileWriter) -> None:
        """Marks the file for the next sweep, which need not wait for ABANDONED_S."""
        with (
            contextlib.suppress(StoreUnavailableError),
            self._database.write(durable=False) as session,
        ):
            session.execute(
                update(File)
                .where(File.number == writer.number, File.state == "uploading")
                .values(state="deleted")
            )

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
        rising = order == "asc"
        query = select(File).where(File.owner == owner, _visible(now_s))
        if purpose is not None:
            query = query.where(File.purpose == purpose)
        with self._database.read() as session:
            if after is not None:
                last = find_file(session, owner, after, now_s).number
                query = query.where(File.number > last if rising else File.number < last)
            query = query.order_by(File.number.asc() if rising else File.number.desc())
            found = session.scalars(query.limit(limit + 1)).all()
        return Page(tuple(found[:limit]), len(found) > limit)

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
    query = select(File).where(File.id == file_id, File.owner == owner, _visible(now_s))
    file = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if file is None:
        raise NotFoundError(f"there is no file {file_id}")
    return file


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
