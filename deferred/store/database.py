"""Access to the database: connections, transactions, and one error for "not now".

SQLite uses a write-ahead log. A transaction that writes takes the write lock at its start, so it
cannot fail half-way for lack of it. What clients rely on is synced to the disk (`durable`). Results
are not: after a power failure (not after a crash of the process) the last ones may be missing, and
their items run again.

PostgreSQL uses READ COMMITTED. A transaction that changes items of a batch, except by claiming
them, holds the lock of the batch's row (`SELECT … FOR UPDATE`, several rows in the order of their
numbers). So transactions do not deadlock, and a batch's counters always match its items.

Rows live on after their transaction, in other threads, and reading them never asks the database
again: they are loaded whole (no relationship, no column that is deferred or set by an expression),
a commit does not expire them, and with the end of the session they are detached.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Engine,
    Update,
    create_engine,
    event,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
    TimeoutError,
)
from sqlalchemy.orm import Session, sessionmaker

from deferred.entities import Base, Batch, File, Order, Page, StoredResponse
from deferred.errors import NotFoundError, StoreInUseError, StoreUnavailableError

WAIT_S = 10  # for a lock, a connection, or a silent server
POSTGRESQL_SETTINGS = f"-c statement_timeout={6 * WAIT_S}s -c lock_timeout={WAIT_S}s"
NAMES: dict[type[Base], str] = {File: "file", Batch: "batch", StoredResponse: "response"}
Owned = TypeVar("Owned", File, Batch, StoredResponse)
OURS_TO_FIX = (IntegrityError, ProgrammingError, DataError, NotSupportedError)


class Database:
    def __init__(self, url: URL) -> None:
        """Raises StoreInUseError, StoreUnavailableError. Connects to PostgreSQL at first use."""
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._held: IO[str] | None = None
        self._writing = threading.Lock()
        if self.is_sqlite:
            self._held = _hold(Path(url.database or ""))
        self._engine = _sqlite(url) if self.is_sqlite else _postgresql(url)
        self._sessions = sessionmaker(
            self._engine,
            expire_on_commit=False,
            autoflush=False,  # a row that a transaction changes is written once, at its end
            # no transaction reads rows again that such a statement has changed
            execution_options={"synchronize_session": False},
        )

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads."""
        with _unavailable(), self._sessions() as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool) -> Iterator[Session]:
        """A transaction, committed at the end. Do not wait inside it: on SQLite it blocks all other
        writers."""
        if not self.is_sqlite:
            with _unavailable(), self._sessions.begin() as session:
                yield session
            return
        # threads queue here: SQLite's own wait polls, so that some threads starve
        if not self._writing.acquire(timeout=WAIT_S):
            raise StoreUnavailableError(f"the database was busy for {WAIT_S} s")
        begin = f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}; BEGIN IMMEDIATE"
        try:
            with _unavailable(), self._sessions.begin() as session:
                session.connection(execution_options={"begin": begin})
                yield session
        finally:
            self._writing.release()

    def insert(self, entity: type[Base]) -> sqlite.Insert | postgresql.Insert:
        """An insert that offers `on_conflict_do_nothing()`."""
        return sqlite.insert(entity) if self.is_sqlite else postgresql.insert(entity)

    def close(self) -> None:
        self._engine.dispose()
        if self._held:
            self._held.close()


def changed(session: Session, statement: Update | Delete) -> int:
    """Executes it; returns the number of its rows."""
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount


def find_owned(
    session: Session,
    kind: type[Owned],
    owner: str,
    id: str,
    *further: ColumnElement[bool],
    lock: bool = False,
) -> Owned:
    """Raises NotFoundError. `lock`: the row's, until the transaction ends."""
    query = select(kind).where(kind.id == id, kind.owner == owner, *further)
    found = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if found is None:
        raise NotFoundError(f"there is no {NAMES[kind]} {id}")
    return found


def page_of(
    session: Session,
    kind: type[Owned],
    owner: str,
    *further: ColumnElement[bool],
    last: int | None,
    limit: int,
    order: Order = "desc",
) -> Page[Owned]:
    """What follows the row with the number `last`, in the order of creation."""
    query = select(kind).where(kind.owner == owner, *further)
    if last is not None:
        query = query.where(kind.number > last if order == "asc" else kind.number < last)
    query = query.order_by(kind.number.asc() if order == "asc" else kind.number.desc())
    found = session.scalars(query.limit(limit + 1)).all()
    return Page(tuple(found[:limit]), len(found) > limit)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except OURS_TO_FIX:
        raise
    except (DBAPIError, TimeoutError, sqlite3.OperationalError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreUnavailableError(f"the database cannot do this now: {cause}") from error


def _hold(path: Path) -> IO[str]:
    """Locks a file beside the database, so that no other process uses it. The system releases the
    lock when the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = path.with_name(path.name + ".lock").open("a+")
    except OSError as error:
        raise StoreUnavailableError(f"cannot open the database's folder: {error}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.seek(0)
        other = held.read().strip() or "unknown"
        held.close()
        raise StoreInUseError(
            f"{path} is in use by process {other}; a SQLite database serves one server: give this "
            "one another DATA_DIR, or share a PostgreSQL database through DATABASE_URL"
        ) from None
    held.truncate(0)
    held.write(str(os.getpid()))
    held.flush()
    return held


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url, connect_args={"timeout": WAIT_S, "isolation_level": None}, pool_timeout=WAIT_S
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # lets `_shrink` return freed pages in small steps; has an effect only in a new database
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        # some builds of SQLite overwrite deleted data with zeros: on a full disk, deleting would
        # then need as much space as it frees
        connection.execute("PRAGMA secure_delete=FAST")
        # a checkpoint syncs twice, which takes a second on a busy disk: a file of 200 MB took 1.4
        # to 33 s to store with checkpoints at 4 MiB (the default), 1.8 to 2.5 s at 32 MiB
        connection.execute("PRAGMA wal_autocheckpoint=8192")
        connection.execute(f"PRAGMA journal_size_limit={64 * 2**20}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        statements = connection.get_execution_options().get("begin", "BEGIN")
        for statement in statements.split("; "):
            connection.exec_driver_sql(statement)

    return engine


def _postgresql(url: URL) -> Engine:
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        pool_timeout=WAIT_S,
        connect_args={
            "connect_timeout": WAIT_S,
            "options": POSTGRESQL_SETTINGS,
            "tcp_user_timeout": WAIT_S * 1000,
            **url.query,
        },
    )
