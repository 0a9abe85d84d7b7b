"""Functions that several steps of batches and items share. They run in the caller's transaction; on
PostgreSQL it must hold the lock of the batch's row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, and_, bindparam, delete, select, update
from sqlalchemy.orm import Session

from deferred.entities import (
    Batch,
    BatchItem,
    BatchStatus,
    ItemBody,
    ItemResult,
    ItemState,
    Unrun,
)
from deferred.errors import LeaseLostError
from deferred.store.database import changed

LEASE_S = 30.0  # a worker without a heartbeat for so long counts as dead
HEARTBEAT_S = 10.0  # between two heartbeats of a worker
CANCELLING_S = 600.0  # running lines may continue for so long: OpenAI's API, "Cancel batch"


LOCK = (  # built once: it runs for every few lines
    select(Batch)
    .where(Batch.number.in_(bindparam("numbers", expanding=True)))
    .order_by(Batch.number)
    .with_for_update()
)


def lock_batches(session: Session, numbers: Iterable[int]) -> Sequence[Batch]:
    return session.scalars(LOCK, {"numbers": sorted(set(numbers))}).all()


def lock_leased(
    session: Session, batch_id: str, worker: str, statuses: Collection[BatchStatus]
) -> Batch:
    """Raises LeaseLostError if `worker` does not hold the batch any more, or its status is not in
    `statuses`."""
    batch = session.scalars(
        select(Batch)
        .where(Batch.id == batch_id, Batch.lease_owner == worker, Batch.status.in_(statuses))
        .with_for_update()
    ).one_or_none()
    if batch is None:
        raise LeaseLostError(f"{worker} no longer holds {batch_id}")
    return batch


def end_items(session: Session, batch: Batch, of: Sequence[ItemState], why: Unrun) -> int:
    """Ends the items in the states `of` as not executed; returns how many."""
    ended = changed(
        session,
        update(BatchItem)
        .where(BatchItem.batch == batch.number, BatchItem.state.in_(of))
        .values(state=why, lease_owner=None),
    )
    setattr(batch, why, getattr(batch, why) + ended)
    return ended


def give_back(session: Session, which: ColumnElement[bool], *, lost: bool) -> int:
    """Makes running items pending again, or cancelled if their batch is being cancelled. Returns
    how many. `lost`: their worker is gone."""
    held = and_(BatchItem.state == "running", which)
    count = 0
    for batch in lock_batches(session, session.scalars(select(BatchItem.batch).where(held))):
        count += changed(
            session,
            update(BatchItem)
            .where(held, BatchItem.batch == batch.number)
            .values(state="pending", lease_owner=None, lost=BatchItem.lost + int(lost)),
        )
        if batch.status == "cancelling":
            end_items(session, batch, ["pending"], "cancelled")
    return count


def remove_items(session: Session, number: int, limit: int) -> int:
    """Removes up to `limit` items of a batch with their bodies and results; returns how many."""
    lines = session.scalars(
        select(BatchItem.line)
        .where(BatchItem.batch == number)
        .order_by(BatchItem.line)
        .limit(limit)
    ).all()
    if lines:
        for of in (ItemResult, ItemBody, BatchItem):
            # a range is enough: these are the batch's first remaining lines
            session.execute(delete(of).where(of.batch == number, of.line <= lines[-1]))
    return len(lines)
