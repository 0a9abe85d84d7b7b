"""Items, the lines of batches: executed at least once, saved exactly once.

A worker claims pending items under a lease, extends the lease by heartbeats, and saves results. A
result counts only while its item is running under the same claim; later results are dropped.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from sqlalchemy import Connection, and_, bindparam, insert, select, tuple_, update

from deferred.entities import Duplicate, Item, Lease, LineResult, NewItem
from deferred.store.claims import claim_lines, next_lines
from deferred.store.database import Database
from deferred.store.schema import batch_items, batches, item_bodies, item_results
from deferred.store.transitions import LEASE_S, give_back, lock_batches, lock_leased

ITEMS_A_COMMIT = 500
BYTES_A_COMMIT = 4 * 2**20
CLAIM_BYTES = 8 * 2**20  # of bodies in memory at once


class Items:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch_id: str, worker: str, items: Iterable[NewItem]) -> list[Duplicate]:
        """Adds lines of a batch that `worker` validates, in commits of some hundred. May be called
        several times. Does not add lines that repeat the custom_id of an earlier line, but returns
        them. Adding the same line twice has no effect.

        Raises LeaseLostError.
        """
        duplicates: list[Duplicate] = []
        for group in _groups(items):
            with self._database.write(durable=False) as connection:
                number = lock_leased(connection, batch_id, worker, ["validating"]).number
                duplicates += self._add_group(connection, number, group)
        return duplicates

    def _add_group(
        self, connection: Connection, number: int, group: Sequence[NewItem]
    ) -> list[Duplicate]:
        digests = {item.line: _digest(item.custom_id) for item in group}
        added = connection.execute(
            self._database.insert(batch_items).on_conflict_do_nothing(),
            [
                {
                    "batch": number,
                    "line": item.line,
                    "custom_id": item.custom_id,
                    "digest": digests[item.line],
                    "state": "pending",
                    "attempt": 0,
                    "lost": 0,
                }
                for item in group
            ],
        ).rowcount
        duplicates = []
        if added < len(group):
            duplicates = _duplicates(connection, number, group, digests)
        left_out = {duplicate.line for duplicate in duplicates}
        bodies = [
            {"batch": number, "line": item.line, "body": item.body}
            for item in group
            if item.line not in left_out
        ]
        if bodies:
            connection.execute(self._database.insert(item_bodies).on_conflict_do_nothing(), bodies)
        return duplicates

    def claim(
        self, worker: str, model: str, n: int, now_s: float, most_bytes: int = CLAIM_BYTES
    ) -> list[Item]:
        """Leases up to `n` pending items of batches in progress to `worker` until now + LEASE_S:
        the earliest deadline first, then in the order of lines. Their bodies have at most
        `most_bytes` together; the first item may be larger."""
        in_progress = (
            select(batches)
            .where(batches.c.status == "in_progress", batches.c.model == model)
            .order_by(batches.c.expires_at, batches.c.number)
        )
        with self._database.read() as connection:
            candidates = connection.execute(in_progress).all()
        claimed: list[Item] = []
        if candidates:
            with self._database.write(durable=False) as connection:
                for batch in candidates:
                    if len(claimed) == n:
                        break
                    lines, all_fit = next_lines(
                        connection, batch.number, n - len(claimed), most_bytes, not claimed
                    )
                    items = claim_lines(connection, batch, lines, worker, now_s)
                    claimed += items
                    most_bytes -= sum(len(item.body) for item in items)
                    if not all_fit:
                        break
        return claimed

    def withdraw(self, worker: str, leases: Collection[Lease]) -> frozenset[Lease]:
        """Cancels and returns those items whose batch is being cancelled. None of `leases` may
        have begun."""
        cancelling = select(batches.c.number).where(
            batches.c.number.in_({lease.batch for lease in leases}),
            batches.c.status == "cancelling",
        )
        with self._database.read() as connection:
            numbers = {*connection.execute(cancelling).scalars()}
        withdrawn = frozenset(lease for lease in leases if lease.batch in numbers)
        if withdrawn:
            named = tuple_(batch_items.c.batch, batch_items.c.line, batch_items.c.attempt)
            ours = and_(
                batch_items.c.lease_owner == worker,
                named.in_([(lease.batch, lease.line, lease.attempt) for lease in withdrawn]),
            )
            with self._database.write(durable=False) as connection:
                give_back(connection, ours, lost=False)
        return withdrawn

    def heartbeat(self, worker: str, leases: Collection[Lease], now_s: float) -> frozenset[Lease]:
        """Extends the worker's leases on these items, and on the batches it validates or finalises.
        Returns the leases it still holds. Executing the others is wasted work: their batch
        expired, or their lease was lost."""
        until = {"lease_until": now_s + LEASE_S}
        held: set[Lease] = set()
        with self._database.write(durable=False) as connection:
            lock_batches(connection, {lease.batch for lease in leases})
            held = _held(connection, worker) & set(leases)
            if held:
                connection.execute(
                    update(batch_items)
                    .where(
                        batch_items.c.batch == bindparam("of_batch"),
                        batch_items.c.line == bindparam("of_line"),
                    )
                    .values(until),
                    [{"of_batch": lease.batch, "of_line": lease.line} for lease in held],
                )
        with self._database.write(durable=False) as connection:
            connection.execute(update(batches).where(batches.c.lease_owner == worker).values(until))
        return frozenset(held)

    def save(self, worker: str, results: Sequence[LineResult]) -> int:
        """Records results in one commit and returns how many counted. Collect results for some
        50 ms or up to 256 before a call: commits cost more than rows."""
        with self._database.write(durable=False) as connection:
            lock_batches(connection, {result.lease.batch for result in results})
            held = _held(connection, worker)
            counted: list[LineResult] = []
            for result in results:
                if result.lease in held:
                    held.remove(result.lease)
                    counted.append(result)
            if counted:
                _record(connection, counted)
        return len(counted)

    def release(self, worker: str) -> int:
        """Gives back all that `worker` holds, before it ends. Returns the number of items."""
        with self._database.write(durable=False) as connection:
            count = give_back(connection, batch_items.c.lease_owner == worker, lost=False)
        with self._database.write(durable=False) as connection:
            connection.execute(
                update(batches).where(batches.c.lease_owner == worker).values(lease_owner=None)
            )
        return count

    def recover(self, now_s: float) -> int:
        """Makes the items of silent workers pending again, or cancelled if their batch is being
        cancelled. Returns how many. On SQLite, `open_store` does this for all leases, as the
        earlier process is certainly gone."""
        with self._database.write(durable=False) as connection:
            return give_back(connection, batch_items.c.lease_until <= now_s, lost=True)


def _groups(items: Iterable[NewItem]) -> Iterator[list[NewItem]]:
    group: list[NewItem] = []
    size_bytes = 0
    for item in items:
        group.append(item)
        size_bytes += len(item.body)
        if len(group) == ITEMS_A_COMMIT or size_bytes >= BYTES_A_COMMIT:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


def _duplicates(
    connection: Connection, number: int, group: Sequence[NewItem], digests: dict[int, bytes]
) -> list[Duplicate]:
    first = dict(
        connection.execute(
            select(batch_items.c.digest, batch_items.c.line).where(
                batch_items.c.batch == number, batch_items.c.digest.in_(digests.values())
            )
        ).all()
    )
    found = ((item, first[digests[item.line]]) for item in group)
    return [Duplicate(item.line, item.custom_id, line) for item, line in found if line != item.line]


def _held(connection: Connection, worker: str) -> set[Lease]:
    rows = connection.execute(
        select(batch_items.c.batch, batch_items.c.line, batch_items.c.attempt).where(
            batch_items.c.lease_owner == worker, batch_items.c.state == "running"
        )
    )
    return {Lease(*row) for row in rows}


def _record(connection: Connection, results: Sequence[LineResult]) -> None:
    connection.execute(
        update(batch_items)
        .where(
            batch_items.c.batch == bindparam("of_batch"), batch_items.c.line == bindparam("of_line")
        )
        .values(state=bindparam("to"), lease_owner=None),
        [
            {
                "of_batch": result.lease.batch,
                "of_line": result.lease.line,
                "to": "completed" if result.succeeded else "failed",
            }
            for result in results
        ],
    )
    connection.execute(
        insert(item_results),
        [
            {"batch": result.lease.batch, "line": result.lease.line, "text": result.text}
            for result in results
        ],
    )
    by_batch: dict[int, list[LineResult]] = defaultdict(list)
    for result in results:
        by_batch[result.lease.batch].append(result)
    for number, of_batch in sorted(by_batch.items()):
        succeeded = sum(result.succeeded for result in of_batch)
        gained = {
            "completed": succeeded,
            "failed": len(of_batch) - succeeded,
            "input_tokens": sum(result.usage.input_tokens for result in of_batch),
            "cached_tokens": sum(result.usage.cached_tokens for result in of_batch),
            "output_tokens": sum(result.usage.output_tokens for result in of_batch),
            "stored_bytes": sum(len(result.text) for result in of_batch),
        }
        connection.execute(
            update(batches)
            .where(batches.c.number == number)
            .values({name: batches.c[name] + value for name, value in gained.items()})
        )
