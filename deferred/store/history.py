"""Ended batches: their totals and their removal.

Work that a server does each second must not grow with the number of ended batches. So their totals
are kept up to date, and indexes skip them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from sqlalchemy import Connection, delete, select, update

from deferred.entities import BatchStatus
from deferred.store.database import AnyRow, Database
from deferred.store.schema import batches, ended_totals
from deferred.store.transitions import remove_items

ENDED: tuple[BatchStatus, ...] = ("completed", "expired", "cancelled", "failed")
ITEMS_A_COMMIT = 1000  # removed
BATCHES_A_COMMIT = 500
SUMS = ("total", "completed", "failed", "expired", "cancelled")


def end_batch(
    database: Database, connection: Connection, number: int, status: BatchStatus, now_s: float
) -> AnyRow:
    """Gives a batch its final status, under the lock of its row; returns the row."""
    row = connection.execute(
        update(batches)
        .where(batches.c.number == number)
        .values({"status": status, f"{status}_at": now_s, "ended_at": now_s, "lease_owner": None})
        .returning(batches)
    ).one()
    add_to_totals(database, connection, [row], 1)
    return row


class EndedBatches:
    def __init__(self, database: Database) -> None:
        self._database = database

    def remove_items(self) -> int | None:
        """Removes some items of one ended batch. Returns how many; None if no batch is left."""
        with self._database.write(durable=False) as connection:
            number = connection.execute(
                select(batches.c.number)
                .where(batches.c.status.in_(ENDED), batches.c.swept == 0)
                .order_by(batches.c.number)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).scalar()
            if number is None:
                return None
            removed = remove_items(connection, number, ITEMS_A_COMMIT)
            if removed < ITEMS_A_COMMIT:
                connection.execute(
                    update(batches).where(batches.c.number == number).values(swept=1)
                )
            return removed

    def remove_batches(self, ended_before_s: float) -> int:
        """Removes some batches that ended before `ended_before_s` and have no items any more;
        returns how many. Their files expire on their own."""
        with self._database.write(durable=False) as connection:
            rows = connection.execute(
                select(batches)
                .where(batches.c.ended_at <= ended_before_s, batches.c.swept == 1)
                .order_by(batches.c.ended_at)
                .limit(BATCHES_A_COMMIT)
                .with_for_update(skip_locked=True)
            ).all()
            if rows:
                numbers = [row.number for row in rows]
                connection.execute(delete(batches).where(batches.c.number.in_(numbers)))
                add_to_totals(self._database, connection, rows, -1)
            return len(rows)


def add_to_totals(
    database: Database, connection: Connection, rows: Iterable[AnyRow], sign: int
) -> None:
    """`sign`: 1 for batches that ended, -1 for those that are removed."""
    gained: dict[str, Counter[str]] = {}
    for row in rows:
        sums = gained.setdefault(row.status, Counter())
        sums["batches"] += sign
        for name in SUMS:
            sums[name] += sign * cast(int, row._mapping[name])
    for status in sorted(gained):  # in a fixed order, so that servers do not deadlock
        sums = gained[status]
        adding = database.insert(ended_totals).values(status=status, **sums)
        raised = {name: ended_totals.c[name] + adding.excluded[name] for name in sums}
        connection.execute(adding.on_conflict_do_update(index_elements=["status"], set_=raised))
