"""Ended batches: their totals and their removal.

Work that a server does each second must not grow with the number of ended batches. So their totals
are kept up to date, and indexes skip them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from deferred.entities import Batch, BatchStatus, EndedTotals
from deferred.store.database import Database
from deferred.store.transitions import remove_items

ENDED: tuple[BatchStatus, ...] = ("completed", "expired", "cancelled", "failed")
ITEMS_A_COMMIT = 1000  # removed
BATCHES_A_COMMIT = 500
SUMS = ("total", "completed", "failed", "expired", "cancelled")


def end_batch(
    database: Database, session: Session, batch: Batch, status: BatchStatus, now_s: float
) -> None:
    """Gives a batch its final status, under the lock of its row."""
    batch.status, batch.ended_at, batch.lease_owner = status, now_s, None
    setattr(batch, f"{status}_at", now_s)
    add_to_totals(database, session, [batch], 1)


def remove_some_items(database: Database) -> int | None:
    """Removes some items of one ended batch. Returns how many; None if no batch is left."""
    with database.write(durable=False) as session:
        batch = session.scalars(
            select(Batch)
            .where(Batch.status.in_(ENDED), Batch.swept == 0)
            .order_by(Batch.number)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        if batch is None:
            return None
        removed = remove_items(session, batch.number, ITEMS_A_COMMIT)
        if removed < ITEMS_A_COMMIT:
            batch.swept = 1
        return removed


def remove_batches(database: Database, ended_before_s: float) -> int | None:
    """Removes some batches that ended before `ended_before_s` and have no items any more; returns
    how many, or None if there is none. Their files expire on their own."""
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
        return len(found) or None


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
