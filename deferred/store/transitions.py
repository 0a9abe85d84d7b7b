"""Functions that several steps of batches and items share. They run in the caller's transaction; on
PostgreSQL it must hold the lock of the batch's row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update

from deferred.entities import (
    Batch,
    BatchStatus,
    BatchUsage,
    ItemState,
    LineError,
    NewBatch,
    RequestCounts,
    Unrun,
)
from deferred.errors import LeaseLostError
from deferred.store.database import AnyRow
from deferred.store.schema import batch_items, batches, item_bodies, item_results

LEASE_S = 30.0  # a worker without a heartbeat for so long counts as dead
HEARTBEAT_S = 10.0  # between two heartbeats of a worker
CANCELLING_S = 600.0  # running lines may continue for so long: OpenAI's API, "Cancel batch"


def claimable(worker: str, now_s: float) -> ColumnElement[bool]:
    """Batches that no other worker validates or finalises. A worker may claim its own batch again:
    it has then given up its earlier attempt."""
    return or_(
        batches.c.lease_owner.is_(None),
        batches.c.lease_owner == worker,
        batches.c.lease_until <= now_s,
    )


def lease_one(
    connection: Connection, which: ColumnElement[bool], worker: str, now_s: float
) -> AnyRow | None:
    """Leases the oldest claimable batch of `which`; None if there is none."""
    number = connection.execute(
        select(batches.c.number)
        .where(which, claimable(worker, now_s))
        .order_by(batches.c.number)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).scalar()
    if number is None:
        return None
    return connection.execute(
        update(batches)
        .where(batches.c.number == number)
        .values(lease_owner=worker, lease_until=now_s + LEASE_S)
        .returning(batches)
    ).one()


def lock_batches(connection: Connection, numbers: Iterable[int]) -> Sequence[AnyRow]:
    return connection.execute(
        select(batches)
        .where(batches.c.number.in_(sorted(set(numbers))))
        .order_by(batches.c.number)
        .with_for_update()
    ).all()


def lock_leased(
    connection: Connection, batch_id: str, worker: str, statuses: Collection[BatchStatus]
) -> AnyRow:
    """Locks and returns the batch's row. Raises LeaseLostError if `worker` does not hold the batch
    any more, or its status is not in `statuses`."""
    row = connection.execute(
        select(batches)
        .where(
            batches.c.id == batch_id,
            batches.c.lease_owner == worker,
            batches.c.status.in_(statuses),
        )
        .with_for_update()
    ).one_or_none()
    if row is None:
        raise LeaseLostError(f"{worker} no longer holds {batch_id}")
    return row


def end_items(connection: Connection, number: int, of: Sequence[ItemState], why: Unrun) -> int:
    """Ends the items in the states `of` as not executed; returns how many."""
    ended = connection.execute(
        update(batch_items)
        .where(batch_items.c.batch == number, batch_items.c.state.in_(of))
        .values(state=why, lease_owner=None)
    ).rowcount
    column = batches.c[why]
    connection.execute(
        update(batches).where(batches.c.number == number).values({column: column + ended})
    )
    return ended


def give_back(connection: Connection, which: ColumnElement[bool], *, lost: bool) -> int:
    """Makes running items pending again, or cancelled if their batch is being cancelled. Returns
    how many. `lost`: their worker is gone."""
    held = and_(batch_items.c.state == "running", which)
    numbers = connection.execute(select(batch_items.c.batch).where(held)).scalars()
    count = 0
    for batch in lock_batches(connection, numbers):
        back = connection.execute(
            update(batch_items)
            .where(held, batch_items.c.batch == batch.number)
            .values(state="pending", lease_owner=None, lost=batch_items.c.lost + int(lost))
        ).rowcount
        count += back
        if batch.status == "cancelling":
            end_items(connection, batch.number, ["pending"], "cancelled")
    return count


def remove_items(connection: Connection, number: int, limit: int) -> int:
    """Removes up to `limit` items of a batch with their bodies and results; returns how many."""
    lines = connection.execute(
        select(batch_items.c.line)
        .where(batch_items.c.batch == number)
        .order_by(batch_items.c.line)
        .limit(limit)
    ).scalars()
    found = [*lines]
    if found:
        for table in (item_results, item_bodies, batch_items):
            # a range is enough: these are the batch's first remaining lines
            connection.execute(
                delete(table).where(table.c.batch == number, table.c.line <= found[-1])
            )
    return len(found)


def batch_of(row: AnyRow) -> Batch:
    return Batch(
        id=row.id,
        owner=row.owner,
        spec=NewBatch(
            input_file_id=row.input_file_id,
            endpoint=row.endpoint,
            model=row.model,
            completion_window=row.completion_window,
            metadata=row.metadata,
            output_expires_after_s=row.output_expires_after_s,
        ),
        status=row.status,
        created_at=row.created_at,
        expires_at=row.expires_at,
        counts=RequestCounts(row.total, row.completed, row.failed, row.expired, row.cancelled),
        usage=BatchUsage(row.input_tokens, row.cached_tokens, row.output_tokens),
        errors=tuple(LineError(**error) for error in row.errors or ()),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        in_progress_at=row.in_progress_at,
        finalizing_at=row.finalizing_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        expired_at=row.expired_at,
        cancelling_at=row.cancelling_at,
        cancelled_at=row.cancelled_at,
    )
