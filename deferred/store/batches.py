"""Batches, from their creation to a final status.

    validating → failed
    validating → in_progress → finalizing → completed | expired
    validating | in_progress → cancelling → cancelled

Every step is a compare-and-set under the lock of the batch's row.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, func, or_, select, update

from deferred.entities import Batch, LineError, NewBatch, Page, Unrun
from deferred.errors import (
    IdempotencyMismatchError,
    LeaseLostError,
    NotFoundError,
    StatusConflictError,
)
from deferred.store.chunks import new_file_id, read_chunks
from deferred.store.database import AnyRow, Database
from deferred.store.files import lock_visible
from deferred.store.finalisation import Finalisation
from deferred.store.history import ITEMS_A_COMMIT, end_batch
from deferred.store.quota import require_quota
from deferred.store.schema import batch_items, batches, files
from deferred.store.transitions import (
    CANCELLING_S,
    batch_of,
    end_items,
    lease_one,
    lock_batches,
    lock_leased,
    remove_items,
)

OPEN = batches.c.total > (
    batches.c.completed + batches.c.failed + batches.c.expired + batches.c.cancelled
)


class Batches:
    def __init__(self, database: Database) -> None:
        self._database = database

    # --- for the owner ---

    def create(
        self,
        owner: str,
        spec: NewBatch,
        now_s: float,
        *,
        expires_at: float,
        idempotency_key: str | None = None,
        quota_bytes: int | None = None,
    ) -> Batch:
        """Creates a batch in `validating`. If the owner used this key for the same spec before,
        returns that batch as it is now.

        Raises:
            NotFoundError: no such input file.
            IdempotencyMismatchError: the key was used for another spec.
            QuotaExceededError: the owner would store more than `quota_bytes`.
        """
        with self._database.write(durable=True) as connection:
            if row := _earlier(connection, owner, idempotency_key):
                return _same(row, spec)
            file = lock_visible(connection, owner, spec.input_file_id, now_s)
            row = connection.execute(
                self._database.insert(batches)
                .values(
                    id=f"batch_{secrets.token_hex(12)}",
                    owner=owner,
                    idempotency_key=idempotency_key,
                    input_file=file.number,
                    status="validating",
                    outcome="completed",
                    created_at=now_s,
                    expires_at=expires_at,
                    planned_output_id=new_file_id(),
                    planned_error_id=new_file_id(),
                    stored_bytes=file.size_bytes,
                    **asdict(spec),
                )
                .on_conflict_do_nothing()
                .returning(batches)
            ).one_or_none()
            if row is not None:
                require_quota(connection, owner, quota_bytes)
                return batch_of(row)
            # another server has just created a batch with this key
            row = _earlier(connection, owner, idempotency_key)
            if row is None:
                raise RuntimeError("the insert met a conflict, but no batch has this key")
            return _same(row, spec)

    def get(self, owner: str, batch_id: str) -> Batch:
        """Raises NotFoundError."""
        with self._database.read() as connection:
            return batch_of(_find(connection, owner, batch_id))

    def list(self, owner: str, *, after: str | None = None, limit: int = 20) -> Page[Batch]:
        """Newest first. Raises NotFoundError if `after` is not a batch of this owner."""
        query = select(batches).where(batches.c.owner == owner)
        with self._database.read() as connection:
            if after is not None:
                query = query.where(batches.c.number < _find(connection, owner, after).number)
            query = query.order_by(batches.c.number.desc()).limit(limit + 1)
            rows = connection.execute(query).all()
        return Page(tuple(batch_of(row) for row in rows[:limit]), len(rows) > limit)

    def cancel(self, owner: str, batch_id: str, now_s: float) -> Batch:
        """Sets the batch to `cancelling` and cancels its pending items. `items.withdraw` cancels
        running items that have not begun; the others may finish. A second call has no effect.

        Raises NotFoundError, and StatusConflictError if the batch is finalizing or has ended.
        """
        with self._database.write(durable=True) as connection:
            row = _find(connection, owner, batch_id, lock=True)
            if row.status == "cancelling":
                return batch_of(row)
            if row.status not in ("validating", "in_progress"):
                raise StatusConflictError(f"{batch_id} is {row.status}: it cannot be cancelled")
            if row.status == "in_progress":
                end_items(connection, row.number, ["pending"], "cancelled")
            return batch_of(
                _set(
                    connection,
                    row,
                    status="cancelling",
                    outcome="cancelled",
                    cancelling_at=now_s,
                    lease_owner=None,
                )
            )

    # --- for the worker ---

    def claim_validation(
        self,
        worker: str,
        model: str,
        now_s: float,
        besides: Collection[str] = (),
        rest: Callable[[], None] = lambda: None,
    ) -> Batch | None:
        """Leases the oldest batch in `validating` to `worker`; None if there is none. Skips batches
        that another worker validates, and those in `besides` (ids). Removes the items of an
        interrupted validation. Then call `input`, `items.add`, and `start` or `fail`. `rest` is
        called between transactions.

        Only one thread of a worker may validate: a worker can claim its own batch again.
        """
        which = (batches.c.status == "validating") & (batches.c.model == model)
        which &= batches.c.id.not_in(list(besides))
        if not self._any(which):
            return None
        with self._database.write(durable=False) as connection:
            row = lease_one(connection, which, worker, now_s)
        if row is None:
            return None
        try:
            self._remove_added(row.id, worker, rest)
        except LeaseLostError:
            return None
        return batch_of(row)

    def _remove_added(self, batch_id: str, worker: str, rest: Callable[[], None]) -> None:
        """Removes the items that a validation added. Raises LeaseLostError."""
        while True:
            with self._database.write(durable=False) as connection:
                number = lock_leased(connection, batch_id, worker, ["validating"]).number
                removed = remove_items(connection, number, ITEMS_A_COMMIT)
            if removed < ITEMS_A_COMMIT:
                return
            rest()

    def input(self, batch: Batch) -> Iterator[bytes]:
        """The bytes of the input file in pieces of at most 1 MiB, even if it was deleted or expired
        after the batch was created. Raises NotFoundError if the bytes are gone."""
        with self._database.read() as connection:
            row = connection.execute(
                select(files)
                .join(batches, batches.c.input_file == files.c.number)
                .where(batches.c.id == batch.id)
            ).one_or_none()
        if row is None:
            raise NotFoundError(f"the input file of {batch.id} is gone")
        return read_chunks(self._database, row)

    def start(self, batch_id: str, worker: str, now_s: float) -> None:
        """`validating` → `in_progress`: its items may be claimed. Raises LeaseLostError."""
        with self._database.write(durable=True) as connection:
            row = lock_leased(connection, batch_id, worker, ["validating"])
            total = select(func.count()).where(batch_items.c.batch == row.number)
            _set(
                connection,
                row,
                status="in_progress",
                in_progress_at=now_s,
                total=connection.execute(total).scalar_one(),
                lease_owner=None,
            )

    def fail(self, batch_id: str, worker: str, errors: Sequence[LineError], now_s: float) -> None:
        """`validating` → `failed`. Raises LeaseLostError."""
        with self._database.write(durable=True) as connection:
            row = lock_leased(connection, batch_id, worker, ["validating"])
            _set(connection, row, errors=[asdict(error) for error in errors])
            end_batch(self._database, connection, row.number, "failed", now_s)

    def end_due(self, now_s: float) -> int:
        """Ends batches whose time is over, so that they can be finalised; returns how many. At the
        end of a window, pending and running items expire. CANCELLING_S after a batch was cancelled,
        its running items are cancelled. Later results are dropped."""
        over = batches.c.expires_at <= now_s
        given_up = over | (batches.c.cancelling_at <= now_s - CANCELLING_S)
        due = or_(
            over & (batches.c.status == "validating"),
            over & (batches.c.status == "in_progress") & OPEN,
            given_up & (batches.c.status == "cancelling") & OPEN,
        )
        with self._database.read() as connection:
            numbers = connection.execute(select(batches.c.number).where(due)).scalars().all()
        return sum(self._end(number, now_s) for number in numbers)

    def _end(self, number: int, now_s: float) -> bool:
        with self._database.write(durable=True) as connection:
            (row,) = lock_batches(connection, [number])
            if row.status == "cancelling":
                return end_items(connection, number, ["running"], "cancelled") > 0
            if row.status == "in_progress":
                if not end_items(connection, number, ["pending", "running"], "expired"):
                    return False  # every item was answered in time
            elif row.status != "validating":
                return False
            _set(
                connection,
                row,
                status="finalizing",
                outcome="expired",
                finalizing_at=now_s,
                lease_owner=None,
            )
            return True

    def claim_finalisation(
        self, worker: str, now_s: float, besides: Collection[str] = ()
    ) -> Batch | None:
        """Leases a batch whose items have all ended to `worker`; None if there is none. Skips
        batches that another worker finalises, and those in `besides` (ids). Then call `finalise`.

        Only one thread of a worker may finalise: a worker can claim its own batch again.
        """
        which = batches.c.status.in_(["in_progress", "finalizing", "cancelling"]) & ~OPEN
        which &= batches.c.id.not_in(list(besides))
        if not self._any(which):
            return None
        with self._database.write(durable=False) as connection:
            row = lease_one(connection, which, worker, now_s)
            if row is None:
                return None
            if row.status == "in_progress":
                row = _set(connection, row, status="finalizing", finalizing_at=now_s)
            return batch_of(row)

    def finalise(
        self,
        batch_id: str,
        worker: str,
        now_s: float,
        unrun_text: Callable[[str, int, str, Unrun], bytes],
        rest: Callable[[], None] = lambda: None,
    ) -> Batch:
        """Writes the output and error files in the order of lines, then gives the batch its final
        status. Files and status become visible in one transaction. A file without lines is not
        made. The call can be interrupted at any moment and repeated.

        Args:
            unrun_text: (batch id, line, custom_id, why) -> the line (JSON, no newline) of the error
                file for an item that was not executed.
            rest: called between transactions; an exception from it interrupts.

        Raises LeaseLostError.
        """
        finalisation = Finalisation(self._database, batch_id, worker, rest)
        return finalisation.run(now_s, unrun_text)

    def give_up(self, batch_id: str, worker: str, rest: Callable[[], None] = lambda: None) -> None:
        """Removes what an interrupted validation or finalisation wrote. `worker` keeps its lease.
        `rest` is called between transactions. Raises LeaseLostError."""
        with self._database.read() as connection:
            query = select(batches.c.status).where(batches.c.id == batch_id)
            validating = connection.execute(query).scalar() == "validating"
        if validating:
            self._remove_added(batch_id, worker, rest)
        else:
            Finalisation(self._database, batch_id, worker, rest).remove_earlier()

    def _any(self, which: ColumnElement[bool]) -> bool:
        """Checks without the write lock, so that an idle worker does not take it."""
        with self._database.read() as connection:
            found = connection.execute(select(batches.c.number).where(which).limit(1))
            return found.first() is not None


def _find(connection: Connection, owner: str, batch_id: str, *, lock: bool = False) -> AnyRow:
    query = select(batches).where(batches.c.id == batch_id, batches.c.owner == owner)
    if lock:
        query = query.with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no batch {batch_id}")
    return row


def _set(connection: Connection, row: AnyRow, **values: object) -> AnyRow:
    return connection.execute(
        update(batches).where(batches.c.number == row.number).values(values).returning(batches)
    ).one()


def _earlier(connection: Connection, owner: str, key: str | None) -> AnyRow | None:
    if key is None:
        return None
    return connection.execute(
        select(batches).where(batches.c.owner == owner, batches.c.idempotency_key == key)
    ).one_or_none()


def _same(row: AnyRow, spec: NewBatch) -> Batch:
    batch = batch_of(row)
    if batch.spec != spec:
        raise IdempotencyMismatchError(
            f"this idempotency key was used for another request ({batch.id}); use a new key"
        )
    return batch
