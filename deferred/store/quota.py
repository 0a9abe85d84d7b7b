"""The limit on what one owner stores."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from deferred.entities import Batch, BatchStatus, File, StoredResponse
from deferred.errors import QuotaExceededError

OPEN_STATUSES: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")


def stored_bytes(session: Session, owner: str) -> int:
    """The size of the owner's files, including uploads and excluding deleted files, of the lines
    and results of batches that have not ended, and of responses."""
    of_files = select(func.coalesce(func.sum(File.size_bytes), 0)).where(
        File.owner == owner, File.state.in_(["uploading", "ready"])
    )
    of_batches = select(func.coalesce(func.sum(Batch.stored_bytes), 0)).where(
        Batch.owner == owner, Batch.status.in_(OPEN_STATUSES)
    )
    of_responses = select(func.coalesce(func.sum(StoredResponse.size_bytes), 0)).where(
        StoredResponse.owner == owner
    )
    queries = (of_files, of_batches, of_responses)
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
