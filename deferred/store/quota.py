"""The limit on what one owner stores."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from deferred.entities import BatchStatus
from deferred.errors import QuotaExceededError
from deferred.store.schema import batches, files

OPEN_STATUSES: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")


def stored_bytes(connection: Connection, owner: str) -> int:
    """The size of the owner's files, including uploads and excluding deleted files, and of the
    lines and results of batches that have not ended."""
    of_files = select(func.coalesce(func.sum(files.c.size_bytes), 0)).where(
        files.c.owner == owner, files.c.state.in_(["uploading", "ready"])
    )
    of_batches = select(func.coalesce(func.sum(batches.c.stored_bytes), 0)).where(
        batches.c.owner == owner, batches.c.status.in_(OPEN_STATUSES)
    )
    return sum(int(connection.execute(query).scalar_one()) for query in (of_files, of_batches))


def require_quota(connection: Connection, owner: str, most_bytes: int | None) -> None:
    """Call it after a change, in the same transaction. Raises QuotaExceededError."""
    if most_bytes is None:
        return
    stored = stored_bytes(connection, owner)
    if stored > most_bytes:
        raise QuotaExceededError(
            f"files and batches would take {stored} bytes, at most {most_bytes} are allowed "
            "(--max-stored-bytes): delete files, or wait until batches have ended"
        )
