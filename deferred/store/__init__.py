"""The durable store of jobs and responses: SQLite in a folder by default, PostgreSQL to share work.

Any thread may call any method. Each method is one or a few short transactions. It raises
`StoreUnavailableError` after a bounded wait if the database is gone, locked or full. The call then
had no visible effect and may be repeated.

The store does not use a job library. Those run one function per job in a worker; here the engine
picks lines at each step and may pause them, and clients see the counts of 50,000 lines as they run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from sqlalchemy import Double, case, cast, func, make_url, null, select, true, union_all, update
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session

from deferred.entities import (
    OPEN_STATUSES,
    Batch,
    BatchItem,
    BatchProgress,
    BatchStatus,
    EndedTotals,
    File,
    ItemState,
    StoredResponse,
)
from deferred.store.batches import OPEN, Batches
from deferred.store.database import Database
from deferred.store.files import Files
from deferred.store.items import Items
from deferred.store.migrations import migrate
from deferred.store.responses import Responses
from deferred.store.transitions import SUMS, give_back, remove_batches, remove_some_items

SWEEP_FILES = 8  # per call
SWEEP_COMMITS = 8  # for items, batches and responses together, per call
ENDS: tuple[ItemState, ...] = ("completed", "failed", "expired", "cancelled")
VACUUM_PAGES = 4096  # returned to the disk per call

# By status. Built once: SQLAlchemy takes longer to build it than a database to answer it.
PROGRESS = union_all(
    select(
        Batch.status,
        func.count().label("batches"),
        *(func.sum(getattr(Batch, name)).label(name) for name in SUMS),
        func.min(case((OPEN, Batch.expires_at)))
        .filter(Batch.status == "in_progress")
        .label("next_deadline"),
    )
    .where(Batch.status.in_(OPEN_STATUSES))
    .group_by(Batch.status),
    select(
        *(getattr(EndedTotals, name) for name in ("status", "batches", *SUMS)),
        cast(null(), Double).label("next_deadline"),
    ),
)
RUNNING = select(func.count()).where(BatchItem.state == "running")


class JobStore:
    """`files`, `batches`, `items` and `responses` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.files = Files(database)
        self.batches = Batches(database)
        self.items = Items(database)
        self.responses = Responses(database)

    def progress(self) -> BatchProgress:
        """The figures of `/stats` and `/metrics`. The cost does not grow with the number of items
        or of ended batches."""
        with self._database.read() as session:
            rows = session.execute(PROGRESS).all()
            running = session.scalars(RUNNING).one()
        sums = {name: sum(int(row._mapping[name]) for row in rows) for name in SUMS}
        items: dict[ItemState, int] = {end: sums[end] for end in ENDS}
        items["running"] = running
        items["pending"] = sums["total"] - sum(items.values())
        counts: dict[BatchStatus, int] = {row.status: row.batches for row in rows if row.batches}
        deadlines = [row.next_deadline for row in rows if row.next_deadline is not None]
        return BatchProgress(counts, items, min(deadlines, default=None))

    def sweep(
        self, now_s: float, ended_before_s: float, rest: Callable[[], None] = lambda: None
    ) -> bool:
        """Removes deleted and expired files, broken uploads (after a day; on SQLite also those of
        earlier processes), the items of ended batches, batches that ended before `ended_before_s`,
        and expired responses. Returns whether it reached the limit of one call. `rest` is called
        between transactions; an exception from it interrupts the sweep."""
        database, unfinished = self._database, False
        for most, steps in (
            (SWEEP_FILES, [partial(self.files.sweep, now_s, rest)]),
            (
                SWEEP_COMMITS,
                [
                    partial(remove_some_items, database),
                    partial(remove_batches, database, ended_before_s),
                    partial(self.responses.sweep, now_s),
                ],
            ),
        ):
            done = 0
            for step in steps:
                while done < most and step():
                    done += 1
                    rest()
            unfinished |= done == most
        if database.is_sqlite:
            self._shrink()
        return unfinished

    def _shrink(self) -> None:
        """Returns some of SQLite's freed pages to the disk."""
        with self._database.write(durable=False) as session:
            sqlite = session.connection().connection.driver_connection
            if sqlite is not None:
                # The pragma frees one page per step; execute() makes only one step of a statement
                # without columns.
                sqlite.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")

    def close(self) -> None:
        """Closes the connections. Another process may then open the SQLite database."""
        self._database.close()


def open_store(where: str | Path) -> JobStore:
    """Opens the database. Creates or migrates it first if needed.

    Args:
        where: a folder (created if missing) for `jobs.db`, or `sqlite:////path/jobs.db`, or
            `postgresql://user:password@host/database`.

    Raises:
        StoreInUseError: another process holds this SQLite database.
        UnknownSchemaError: it was made by a later version of this program, or before the first
            release.
        StoreUnavailableError: it cannot be reached or written.
        ValueError: the URL is of another kind.
    """
    database = Database(_url(where))
    try:
        with database.write(durable=True) as session:
            migrate(session.connection())
        if database.is_sqlite:
            with database.write(durable=True) as session:
                _end_earlier_process(session)
    except BaseException:
        database.close()
        raise
    return JobStore(database)


def _url(where: str | Path) -> URL:
    if "://" not in str(where):
        return URL.create("sqlite", database=str(Path(where).absolute() / "jobs.db"))
    url = make_url(str(where))
    if url.get_backend_name() not in ("sqlite", "postgresql") or not url.database:
        raise ValueError(
            "a database URL must be sqlite:////absolute/path.db or "
            f"postgresql://user:password@host/database, got {url.render_as_string()!r}"
        )
    return url


def _end_earlier_process(session: Session) -> None:
    """Frees what an earlier process left unfinished: running items, leases, uploads and
    responses."""
    give_back(session, true(), lost=True)
    for left in (
        update(Batch).where(Batch.lease_owner.is_not(None)).values(lease_owner=None),
        update(File).where(File.state == "uploading").values(state="deleted"),
        update(StoredResponse).where(StoredResponse.lost_at.is_not(None)).values(lost_at=0.0),
    ):
        session.execute(left)
