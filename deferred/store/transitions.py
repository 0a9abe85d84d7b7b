"""Steps of batches and items that share tables: their ends, totals and removal.

Functions with a `session` run in the caller's transaction; on PostgreSQL it must hold the lock of
the batch's row. Work that a server does each second must not grow with the number of ended batches.
So their totals are kept up to date, and indexes skip them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, and_, bindparam, delete, select, update
from sqlalchemy.orm import Session

from deferred.entities import (
    ENDED,
    Batch,
    BatchItem,
    BatchStatus,
    EndedTotals,
    ItemBody,
    ItemResult,
    ItemState,
    Unrun,
)
from deferred.errors import LeaseLostError
from deferred.store.database import Database, changed

LEASE_S = 30.0  # a worker without a heartbeat for so long counts as dead
HEARTBEAT_S = 10.0  # between two heartbeats of a worker
CANCELLING_S = 600.0  # running lines may continue for so long: OpenAI's API, "Cancel batch"
ITEMS_A_COMMIT = 1000  # removed
BATCHES_A_COMMIT = 500
SUMS = ("total", "completed", "failed", "expired", "cancelled")

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


def remove_items(session: Session, number: int) -> int:
    """Removes up to ITEMS_A_COMMIT items of a batch with their bodies and results; returns how
    many."""
    lines = session.scalars(
        select(BatchItem.line)
        .where(BatchItem.batch == number)
        .order_by(BatchItem.line)
        .limit(ITEMS_A_COMMIT)
    ).all()
    if lines:
        for of in (ItemResult, ItemBody, BatchItem):
            # a range is enough: these are the batch's first remaining lines
            session.execute(delete(of).where(of.batch == number, of.line <= lines[-1]))
    return len(lines)


def end_batch(
    database: Database, session: Session, batch: Batch, status: BatchStatus, now_s: float
) -> None:
    """Gives a batch its final status, under the lock of its row."""
    batch.status, batch.ended_at, batch.lease_owner = status, now_s, None
    setattr(batch, f"{status}_at", now_s)
    add_to_totals(database, session, [batch], 1)


def remove_some_items(database: Database) -> bool:
    """Removes some items of one ended batch; False if no batch has any."""
    with database.write(durable=False) as session:
        batch = session.scalars(
            select(Batch)
            .where(Batch.status.in_(ENDED), Batch.swept == 0)
            .order_by(Batch.number)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        if batch is not None and remove_items(session, batch.number) < ITEMS_A_COMMIT:
            batch.swept = 1
        return batch is not None


def remove_batches(database: Database, ended_before_s: float) -> bool:
    """Removes some batches that ended before `ended_before_s` and have no items any more; False if
    there is none. Their files expire on their own."""
    with database.write(durable=False) as session:
        found = session.scalars(
            select(Batch)
            .where(Batch.ended_at <= ended_before_s, Batch.swept == 1)
            .order_by(Batch.ended_at)
            .limit(BATCHES_A_COMMIT)
            .with_for_update(skip_locked=True)
        ).all()
        if found:
            numbers = [batch.number for batch in found]
            session.execute(delete(Batch).where(Batch.number.in_(numbers)))
            add_to_totals(database, session, found, -1)
        return bool(found)


def add_to_totals(
    database: Database, session: Session, batches: Sequence[Batch], sign: int
) -> None:
    """`sign`: 1 for batches that ended, -1 for those that are removed."""
    for status in sorted({batch.status for batch in batches}):  # so that servers do not deadlock
        of_it = [batch for batch in batches if batch.status == status]
        gained = {name: sign * sum(getattr(batch, name) for batch in of_it) for name in SUMS}
        gained["batches"] = sign * len(of_it)
        adding = database.insert(EndedTotals).values(status=status, **gained)
        raised = {name: getattr(EndedTotals, name) + adding.excluded[name] for name in gained}
        session.execute(adding.on_conflict_do_update(index_elements=["status"], set_=raised))
