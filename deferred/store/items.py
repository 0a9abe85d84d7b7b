"""Items, the lines of batches: executed at least once, saved exactly once.

A worker claims pending items under a lease, extends the lease by heartbeats, and saves results. A
result counts only while its item is running under the same claim; later results are dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from sqlalchemy import and_, bindparam, func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from deferred.entities import (
    Batch,
    BatchItem,
    Item,
    ItemBody,
    ItemResult,
    Lease,
    LineResult,
    NewItem,
)
from deferred.store.database import Database
from deferred.store.transitions import LEASE_S, give_back, lock_batches, lock_leased

ITEMS_A_COMMIT = 500
BYTES_A_COMMIT = 4 * 2**20
CLAIM_BYTES = 8 * 2**20  # of bodies in memory at once


# Built once, as `PROGRESS` is: they run for every few lines.
HELD = select(BatchItem.batch, BatchItem.line, BatchItem.attempt).where(
    BatchItem.lease_owner == bindparam("worker"), BatchItem.state == "running"
)
# A statement apart from CLAIM: inside it, PostgreSQL may evaluate it for each row and claim more
# than `most`. SQLAlchemy leaves the lock out on SQLite, which has one writer.
NEXT = (
    select(
        BatchItem.line,
        select(func.length(ItemBody.body))
        .where(ItemBody.batch == BatchItem.batch, ItemBody.line == BatchItem.line)
        .scalar_subquery(),
    )
    .where(BatchItem.batch == bindparam("of_batch"), BatchItem.state == "pending")
    .order_by(BatchItem.line)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
CLAIM = (
    update(BatchItem)
    .where(
        BatchItem.batch == bindparam("of_batch"),
        BatchItem.state == "pending",
        BatchItem.line.in_(bindparam("of_lines", expanding=True)),
    )
    .values(
        state="running",
        lease_owner=bindparam("worker"),
        lease_until=bindparam("until"),
        attempt=BatchItem.attempt + 1,
    )
    .returning(BatchItem.line, BatchItem.attempt, BatchItem.custom_id, BatchItem.lost)
)
BODIES = select(ItemBody.line, ItemBody.body).where(
    ItemBody.batch == bindparam("of_batch"),
    ItemBody.line.in_(bindparam("of_lines", expanding=True)),
)


class Items:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, batch_id: str, worker: str, items: Iterable[NewItem]
    ) -> list[tuple[NewItem, int]]:
        """Adds lines of a batch that `worker` validates, in commits of some hundred. May be called
        several times. Does not add lines that repeat the custom_id of an earlier line, but returns
        them, each with the number of the earlier one. Adding the same line twice has no effect.

        Raises LeaseLostError.
        """
        duplicates: list[tuple[NewItem, int]] = []
        for group in _groups(items):
            with self._database.write(durable=False) as session:
                number = lock_leased(session, batch_id, worker, ["validating"]).number
                duplicates += self._add_group(session, number, group)
        return duplicates

    def _add_group(
        self, session: Session, number: int, group: Sequence[NewItem]
    ) -> list[tuple[NewItem, int]]:
        digests = {
            item.line: hashlib.blake2b(item.custom_id.encode(), digest_size=16).digest()
            for item in group
        }
        # not by the session, which does not say how many rows were added
        added = session.connection().execute(
            self._database.insert(BatchItem).on_conflict_do_nothing(),
            [
                {
                    "batch": number,
                    "line": item.line,
                    "custom_id": item.custom_id,
                    "digest": digests[item.line],
                    "state": "pending",
                }
                for item in group
            ],
        )
        first: dict[bytes, int] = {}
        if added.rowcount < len(group):
            of_ids = (BatchItem.batch == number) & BatchItem.digest.in_(digests.values())
            query = select(BatchItem.digest, BatchItem.line).where(of_ids)
            first = dict(session.execute(query).all())
        found = [(item, first.get(digests[item.line], item.line)) for item in group]
        bodies = [
            {"batch": number, "line": item.line, "body": item.body}
            for item, line in found
            if line == item.line
        ]
        if bodies:
            session.execute(self._database.insert(ItemBody).on_conflict_do_nothing(), bodies)
        return [(item, line) for item, line in found if line != item.line]

    def claim(
        self, worker: str, model: str, n: int, now_s: float, most_bytes: int = CLAIM_BYTES
    ) -> list[Item]:
        """Leases up to `n` pending items of batches in progress to `worker` until now + LEASE_S:
        the earliest deadline first, then in the order of lines. Their bodies have at most
        `most_bytes` together; the first item may be larger."""
        with self._database.read() as session:
            candidates = session.scalars(
                select(Batch)
                .where(Batch.status == "in_progress", Batch.model == model)
                .order_by(Batch.expires_at, Batch.number)
            ).all()
        claimed: list[Item] = []
        if candidates:
            with self._database.write(durable=False) as session:
                for batch in candidates:
                    if len(claimed) == n:
                        break
                    lines, all_fit = _next_lines(
                        session, batch, n - len(claimed), most_bytes, not claimed
                    )
                    items = _claim_lines(session, batch, lines, worker, now_s)
                    claimed += items
                    most_bytes -= sum(len(item.body) for item in items)
                    if not all_fit:
                        break
        return claimed

    def withdraw(self, worker: str, leases: Collection[Lease]) -> frozenset[Lease]:
        """Cancels and returns those items whose batch is being cancelled. None of `leases` may
        have begun."""
        cancelling = select(Batch.number).where(
            Batch.number.in_({lease.batch for lease in leases}), Batch.status == "cancelling"
        )
        with self._database.read() as session:
            numbers = {*session.scalars(cancelling)}
        withdrawn = frozenset(lease for lease in leases if lease.batch in numbers)
        if withdrawn:
            named = tuple_(BatchItem.batch, BatchItem.line, BatchItem.attempt)
            ours = and_(BatchItem.lease_owner == worker, named.in_(list(withdrawn)))
            with self._database.write(durable=False) as session:
                give_back(session, ours, lost=False)
        return withdrawn

    def heartbeat(self, worker: str, leases: Collection[Lease], now_s: float) -> frozenset[Lease]:
        """Extends the worker's leases on these items, and on the batches it validates or finalises.
        Returns the leases it still holds. Executing the others is wasted work: their batch
        expired, or their lease was lost."""
        until = {"lease_until": now_s + LEASE_S}
        with self._database.write(durable=False) as session:
            lock_batches(session, {lease.batch for lease in leases})
            held = _held(session, worker).intersection(leases)
            if held:
                extended = [{"batch": of.batch, "line": of.line, **until} for of in held]
                session.execute(update(BatchItem), extended)
        with self._database.write(durable=False) as session:
            session.execute(update(Batch).where(Batch.lease_owner == worker).values(until))
        return frozenset(held)

    def save(self, worker: str, results: Sequence[LineResult]) -> int:
        """Records results in one commit and returns how many counted. Collect results for some
        50 ms or up to 256 before a call: commits cost more than rows."""
        with self._database.write(durable=False) as session:
            batches = lock_batches(session, {result.lease.batch for result in results})
            held = _held(session, worker)
            counted: dict[Lease, LineResult] = {}  # the first result of each lease
            for result in results:
                if result.lease in held:
                    counted.setdefault(result.lease, result)
            if counted:
                _record(session, batches, list(counted.values()))
        return len(counted)

    def release(self, worker: str) -> int:
        """Gives back all that `worker` holds, before it ends. Returns the number of items."""
        with self._database.write(durable=False) as session:
            count = give_back(session, BatchItem.lease_owner == worker, lost=False)
        with self._database.write(durable=False) as session:
            session.execute(
                update(Batch).where(Batch.lease_owner == worker).values(lease_owner=None)
            )
        return count

    def recover(self, now_s: float) -> int:
        """Makes the items of silent workers pending again, or cancelled if their batch is being
        cancelled. Returns how many. On SQLite, `open_store` does this for all leases, as the
        earlier process is certainly gone."""
        with self._database.write(durable=False) as session:
            return give_back(session, BatchItem.lease_until <= now_s, lost=True)


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


def _next_lines(
    session: Session, batch: Batch, n: int, most_bytes: int, one_at_least: bool
) -> tuple[list[int], bool]:
    """Locks and returns the batch's next pending lines, at most `n`, that fit into `most_bytes`;
    also returns whether all of them fit."""
    found = session.execute(NEXT, {"of_batch": batch.number, "most": n}).all()
    fit = sum(end <= most_bytes for end in accumulate(size for _, size in found))
    if one_at_least:
        fit = max(fit, 1)
    return [line for line, _ in found[:fit]], fit >= len(found)


def _claim_lines(
    session: Session, batch: Batch, lines: Sequence[int], worker: str, now_s: float
) -> list[Item]:
    if not lines:
        return []
    which = {"of_batch": batch.number, "of_lines": lines}
    lease = {"worker": worker, "until": now_s + LEASE_S}
    claimed = session.connection().execute(CLAIM, {**which, **lease}).all()
    bodies = dict(session.execute(BODIES, which).all())
    return [
        Item(batch, Lease(batch.number, line, attempt), custom_id, bodies[line], lost)
        for line, attempt, custom_id, lost in sorted(claimed)
    ]


def _held(session: Session, worker: str) -> set[Lease]:
    return {Lease(*row) for row in session.execute(HELD, {"worker": worker})}


def _record(session: Session, batches: Sequence[Batch], results: Sequence[LineResult]) -> None:
    """`batches`: theirs, locked."""
    ended, texts = [], []
    for result in results:
        key = {"batch": result.lease.batch, "line": result.lease.line}
        state = "completed" if result.succeeded else "failed"
        ended.append({**key, "state": state, "lease_owner": None})
        texts.append({**key, "text": result.text})
    session.execute(update(BatchItem), ended)
    session.execute(insert(ItemResult), texts)
    of_number = {batch.number: batch for batch in batches}
    for result in results:
        batch = of_number[result.lease.batch]
        batch.completed += result.succeeded
        batch.failed += not result.succeeded
        batch.input_tokens += result.usage.input_tokens
        batch.cached_tokens += result.usage.cached_tokens
        batch.output_tokens += result.usage.output_tokens
        batch.stored_bytes += len(result.text)
