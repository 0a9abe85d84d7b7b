"""The durable store of jobs. SQLite in a folder by default; PostgreSQL to share work.

All methods are safe to call from any thread, and each is one or a few short transactions. They
raise `StoreUnavailableError` after a bounded wait when the database is gone, locked or full; then
nothing of the call is visible, and it may be repeated.

Own tables rather than a job library: the engine picks rows at each step, pauses them, and counts of
50,000 rows must be visible while they run; queues that run a function in a worker give none of it.
"""

from __future__ import annotations

from pathlib import Path

from deferred.batches import Batches
from deferred.files import Files
from deferred.items import Items
from deferred.records import Progress, Swept


class JobStore:
    """`files`, `batches` and `items` of one database."""

    files: Files
    batches: Batches
    items: Items

    def progress(self) -> Progress:
        """For `/stats` and `/metrics`: cheap, whatever the number of items."""
        raise NotImplementedError

    def sweep(self, now_s: float) -> Swept:
        """Removes the bytes of deleted and expired files, uploads that broke off (untouched for an
        hour), and the items of ended batches; at most some thousand rows a call."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connections and gives the SQLite database free for another process."""
        raise NotImplementedError


def open_store(where: str | Path, now_s: float) -> JobStore:
    """Opens, and makes or migrates where needed, the database.

    Args:
        where: a folder (made if missing) for `jobs.db`, or `sqlite:////path/jobs.db`, or
            `postgresql://user:password@host/database`.

    Raises:
        StoreInUseError: another process holds this SQLite database.
        SchemaTooNewError: a later version of this program made it.
        StoreUnavailableError: it cannot be reached or written.
    """
    raise NotImplementedError
