"""Files, as their owners see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import ColumnElement, Connection, and_, or_, select, update

from deferred.entities import File, Order, Page
from deferred.errors import FileTooLargeError, NotFoundError, StoreUnavailableError
from deferred.store.chunks import FileWriter, file_of, new_file_id, read_chunks, remove_chunks
from deferred.store.database import AnyRow, Database
from deferred.store.quota import require_quota
from deferred.store.schema import batches, files

ABANDONED_S = 24 * 3600  # an upload or a finalisation that is unfinished for so long never ends
CHUNKS_A_COMMIT = 16  # removed by a sweep


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
        with self._database.write(durable=False) as connection:
            require_quota(connection, owner, quota_bytes)
            writer = FileWriter(connection, new_file_id(), owner, purpose, filename, now_s)
        try:
            for piece in content:
                if max_bytes is not None and writer.size_bytes + len(piece) > max_bytes:
                    raise FileTooLargeError(f"the file has more than {max_bytes} bytes")
                if writer.add(piece):
                    with self._database.write(durable=False) as connection:
                        writer.flush(connection)
                        require_quota(connection, owner, quota_bytes)
            expiry = None if expires_at is None else expires_at()
            with self._database.write(durable=True) as connection:
                file = writer.finish(connection, now_s, expiry)
                require_quota(connection, owner, quota_bytes)
                return file
        except BaseException:
            self._give_up(writer)
            raise

    def _give_up(self, writer: FileWriter) -> None:
        """Marks the file for the next sweep, which need not wait for ABANDONED_S."""
        try:
            with self._database.write(durable=False) as connection:
                connection.execute(
                    update(files)
                    .where(files.c.number == writer.number, files.c.state == "uploading")
                    .values(state="deleted")
                )
        except StoreUnavailableError:
            pass

    def get(self, owner: str, file_id: str, now_s: float) -> File:
        """Raises NotFoundError."""
        with self._database.read() as connection:
            return file_of(_find(connection, owner, file_id, now_s))

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
        query = select(files).where(files.c.owner == owner, _visible(now_s))
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        with self._database.read() as connection:
            if after is not None:
                last = _find(connection, owner, after, now_s).number
                query = query.where(files.c.number > last if rising else files.c.number < last)
            query = query.order_by(files.c.number.asc() if rising else files.c.number.desc())
            rows = connection.execute(query.limit(limit + 1)).all()
        return Page(tuple(file_of(row) for row in rows[:limit]), len(rows) > limit)

    def delete(self, owner: str, file_id: str, now_s: float) -> None:
        """Makes the file invisible; a sweep removes its bytes. Batches that were created from it
        are not harmed: the bytes stay until validation has copied the lines.

        Raises NotFoundError.
        """
        with self._database.write(durable=True) as connection:
            row = _find(connection, owner, file_id, now_s)
            connection.execute(
                update(files).where(files.c.number == row.number).values(state="deleted")
            )

    def content(self, owner: str, file_id: str, now_s: float) -> Iterator[bytes]:
        """The bytes in pieces of at most 1 MiB. Raises NotFoundError, also from the iterator if the
        file is deleted and swept meanwhile."""
        with self._database.read() as connection:
            row = _find(connection, owner, file_id, now_s)
        return read_chunks(self._database, row)

    def sweep(self, now_s: float, rest: Callable[[], None]) -> bool:
        """Removes one deleted, expired or abandoned file that no batch in `validating` needs;
        False if there is none. `rest` is called between transactions."""
        with self._database.write(durable=False) as connection:
            connection.execute(
                update(files)
                .where(
                    or_(
                        and_(files.c.state == "ready", files.c.expires_at <= now_s),
                        and_(
                            files.c.state == "uploading", files.c.created_at < now_s - ABANDONED_S
                        ),
                    )
                )
                .values(state="deleted")
            )
        needed = select(batches.c.input_file).where(batches.c.status == "validating")
        with self._database.read() as connection:
            number = connection.execute(
                select(files.c.number)
                .where(files.c.state == "deleted", files.c.number.not_in(needed))
                .order_by(files.c.number)
                .limit(1)
            ).scalar()
        if number is None:
            return False
        while self._remove_some(number):
            rest()
        return True

    def _remove_some(self, number: int) -> bool:
        with self._database.write(durable=False) as connection:
            # `Batches.create` holds this lock while it creates a batch from the file
            connection.execute(select(files.c.id).where(files.c.number == number).with_for_update())
            needed = select(batches.c.number).where(
                batches.c.status == "validating", batches.c.input_file == number
            )
            if connection.execute(needed.limit(1)).first():
                return False
            return remove_chunks(connection, number, CHUNKS_A_COMMIT)


def lock_visible(connection: Connection, owner: str, file_id: str, now_s: float) -> AnyRow:
    """Locks a file, so that no sweep removes it before the transaction ends. Raises
    NotFoundError."""
    return _find(connection, owner, file_id, now_s, lock=True)


def _visible(now_s: float) -> ColumnElement[bool]:
    return and_(
        files.c.state == "ready", or_(files.c.expires_at.is_(None), files.c.expires_at > now_s)
    )


def _find(
    connection: Connection, owner: str, file_id: str, now_s: float, *, lock: bool = False
) -> AnyRow:
    query = select(files).where(files.c.id == file_id, files.c.owner == owner, _visible(now_s))
    if lock:
        query = query.with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no file {file_id}")
    return row
