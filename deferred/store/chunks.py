"""A file's bytes, written and read as streams. The database holds them in rows of 1 MiB, so servers
that share the database need no shared disk."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator

from sqlalchemy import Connection, delete, insert, select, update

from deferred.entities import File
from deferred.errors import NotFoundError, StoreUnavailableError
from deferred.store.database import AnyRow, Database
from deferred.store.schema import CHUNK_BYTES, file_chunks, files


class FileWriter:
    """A file that is being written: first a row in `uploading`, then chunks, then the end. Methods
    with a `connection` run in the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        file_id: str,
        owner: str,
        purpose: str,
        filename: str,
        now_s: float,
    ) -> None:
        row = connection.execute(
            insert(files)
            .values(
                id=file_id,
                owner=owner,
                purpose=purpose,
                filename=filename,
                state="uploading",
                size_bytes=0,
                sha256="",
                created_at=now_s,
            )
            .returning(files.c.number)
        )
        self.number: int = row.scalar_one()
        self.id = file_id
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

    def flush(self, connection: Connection) -> None:
        """Stores the full chunks."""
        while len(self._rest) >= CHUNK_BYTES:
            self._store(connection)
        connection.execute(
            update(files)
            .where(files.c.number == self.number)
            .values(size_bytes=self._seq * CHUNK_BYTES)
        )

    def finish(self, connection: Connection, now_s: float, expires_at: float | None) -> File:
        """Stores the rest and makes the file visible, with `now_s` as its time of creation."""
        self.flush(connection)
        if self._rest:
            self._store(connection)
        row = connection.execute(
            update(files)
            .where(files.c.number == self.number, files.c.state == "uploading")
            .values(
                state="ready",
                size_bytes=self.size_bytes,
                sha256=self._sha256.hexdigest(),
                created_at=now_s,
                expires_at=expires_at,
            )
            .returning(files)
        ).one_or_none()
        if row is None:
            raise StoreUnavailableError("the upload took too long and was removed; send it again")
        return file_of(row)

    def withdraw(self, connection: Connection) -> None:
        """Removes the row of a file to which nothing was added."""
        connection.execute(delete(files).where(files.c.number == self.number))

    def _store(self, connection: Connection) -> None:
        connection.execute(
            insert(file_chunks).values(
                file=self.number, seq=self._seq, data=bytes(self._rest[:CHUNK_BYTES])
            )
        )
        del self._rest[:CHUNK_BYTES]
        self._seq += 1


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def read_chunks(database: Database, row: AnyRow) -> Iterator[bytes]:
    """Yields the bytes of a file. `row`: its row of `files`."""
    for seq in range(-(-row.size_bytes // CHUNK_BYTES)):
        with database.read() as connection:
            data = connection.execute(
                select(file_chunks.c.data).where(
                    file_chunks.c.file == row.number, file_chunks.c.seq == seq
                )
            ).scalar()
        if data is None:
            raise NotFoundError(f"file {row.id} was removed while it was read")
        yield data


def remove_chunks(connection: Connection, number: int, limit: int) -> bool:
    """Removes up to `limit` chunks of a file, and its row with the last one. Returns True if there
    may be more."""
    seqs = connection.execute(
        select(file_chunks.c.seq)
        .where(file_chunks.c.file == number)
        .order_by(file_chunks.c.seq)
        .limit(limit)
    ).scalars()
    found = [*seqs]
    connection.execute(
        delete(file_chunks).where(file_chunks.c.file == number, file_chunks.c.seq.in_(found))
    )
    if len(found) < limit:
        connection.execute(delete(files).where(files.c.number == number))
    return len(found) == limit


def file_of(row: AnyRow) -> File:
    return File(
        row.id,
        row.owner,
        row.purpose,
        row.filename,
        row.size_bytes,
        row.sha256,
        row.created_at,
        row.expires_at,
    )
