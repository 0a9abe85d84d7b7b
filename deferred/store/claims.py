"""A worker's claim on the next lines of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from sqlalchemy import Connection, func, select, update

from deferred.entities import Item, Lease
from deferred.store.database import AnyRow
from deferred.store.schema import batch_items, item_bodies
from deferred.store.transitions import LEASE_S


def next_lines(
    connection: Connection, number: int, n: int, most_bytes: int, one_at_least: bool
) -> tuple[list[int], bool]:
    """Locks and returns the batch's next pending lines, at most `n`, that fit into `most_bytes`;
    also returns whether all of them fit."""
    # A separate statement: inside the update, PostgreSQL may evaluate it for each row and claim
    # more than n. SQLAlchemy leaves the lock out on SQLite, which has one writer.
    size_bytes = (
        select(func.length(item_bodies.c.body))
        .where(item_bodies.c.batch == batch_items.c.batch, item_bodies.c.line == batch_items.c.line)
        .scalar_subquery()
    )
    found = connection.execute(
        select(batch_items.c.line, size_bytes)
        .where(batch_items.c.batch == number, batch_items.c.state == "pending")
        .order_by(batch_items.c.line)
        .limit(n)
        .with_for_update(skip_locked=True)
    ).all()
    ends = accumulate(size for _, size in found)
    fit = sum(end <= most_bytes for end in ends)
    if one_at_least:
        fit = max(fit, 1)
    return [line for line, _ in found[:fit]], fit >= len(found)


def claim_lines(
    connection: Connection, batch: AnyRow, lines: Sequence[int], worker: str, now_s: float
) -> list[Item]:
    if not lines:
        return []
    rows = connection.execute(
        update(batch_items)
        .where(
            batch_items.c.batch == batch.number,
            batch_items.c.state == "pending",
            batch_items.c.line.in_(lines),
        )
        .values(
            state="running",
            lease_owner=worker,
            lease_until=now_s + LEASE_S,
            attempt=batch_items.c.attempt + 1,
        )
        .returning(batch_items)
    ).all()
    bodies = dict(
        connection.execute(
            select(item_bodies.c.line, item_bodies.c.body).where(
                item_bodies.c.batch == batch.number, item_bodies.c.line.in_(lines)
            )
        ).all()
    )
    return [
        Item(
            lease=Lease(row.batch, row.line, row.attempt),
            batch_id=batch.id,
            owner=batch.owner,
            endpoint=batch.endpoint,
            deadline=batch.expires_at,
            line=row.line,
            custom_id=row.custom_id,
            body=bodies[row.line],
            lost=row.lost,
        )
        for row in sorted(rows, key=lambda row: int(row.line))
    ]
