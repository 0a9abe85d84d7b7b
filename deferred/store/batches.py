"""Batches, from their creation to a final status.

    validating → failed
    validating → in_progress → finalizing → completed | expired
    validating | in_progress → cancelling → cancelled

Every step is a compare-and-set under the lock of the batch's row.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from sqlalchemy import ColumnElement, Row, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from deferred.entities import (
    Batch,
    BatchItem,
    BatchStatus,
    File,
    ItemResult,
    ItemState,
    LineError,
    NewBatch,
    Page,
    Unrun,
)
from deferred.errors import (
    IdempotencyMismatchError,
    LeaseLostError,
    NotFoundError,
    StatusConflictError,
)
from deferred.store.database import Database, find_owned, page_of
from deferred.store.files import (
    CHUNKS_A_COMMIT,
    FileWriter,
    find_file,
    new_file_id,
    read_chunks,
    remove_chunks,
    require_quota,
)
from deferred.store.transitions import (
    CANCELLING_S,
    LEASE_S,
    end_batch,
    end_items,
    lock_batches,
    lock_leased,
    remove_items,
)

LINES_A_READ = 32  # items whose texts are in memory at once
WRITTEN: tuple[BatchStatus, ...] = ("finalizing", "cancelling")  # whose files may be written
OPEN = Batch.total > Batch.completed + Batch.failed + Batch.expired + Batch.cancelled


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
        with self._database.write(durable=True) as session:
            if earlier := _earlier(session, owner, idempotency_key, spec):
                return earlier
            # locked, so that no sweep removes it
            file = find_file(session, owner, spec.input_file_id, now_s, lock=True)
            batch = session.scalars(
                self._database.insert(Batch)
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
                .returning(Batch)
            ).one_or_none()
            if batch is not None:
                require_quota(session, owner, quota_bytes)
                return batch
            # another server has just created a batch with this key
            earlier = _earlier(session, owner, idempotency_key, spec)
            if earlier is None:
                raise RuntimeError("the insert met a conflict, but no batch has this key")
            return earlier

    def get(self, owner: str, batch_id: str) -> Batch:
        """Raises NotFoundError."""
        with self._database.read() as session:
            return find_owned(session, Batch, owner, batch_id)

    def list(self, owner: str, *, after: str | None = None, limit: int = 20) -> Page[Batch]:
        """Newest first. Raises NotFoundError if `after` is not a batch of this owner."""
        with self._database.read() as session:
            last = None if after is None else find_owned(session, Batch, owner, after).number
            return page_of(session, Batch, owner, last=last, limit=limit)

    def cancel(self, owner: str, batch_id: str, now_s: float) -> Batch:
        """Sets the batch to `cancelling` and cancels its pending items. `items.withdraw` cancels
        running items that have not begun; the others may finish. A second call has no effect.

        Raises NotFoundError, and StatusConflictError if the batch is finalizing or has ended.
        """
        with self._database.write(durable=True) as session:
            batch = find_owned(session, Batch, owner, batch_id, lock=True)
            if batch.status == "cancelling":
                return batch
            if batch.status not in ("validating", "in_progress"):
                raise StatusConflictError(f"{batch_id} is {batch.status}: it cannot be cancelled")
            if batch.status == "in_progress":
                end_items(session, batch, ["pending"], "cancelled")
            batch.status, batch.outcome, batch.cancelling_at = "cancelling", "cancelled", now_s
            batch.lease_owner = None
            return batch

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
        which = (Batch.status == "validating") & (Batch.model == model)
        batch = self._lease_one(which & Batch.id.not_in(list(besides)), worker, now_s)
        if batch is None:
            return None
        try:
            self.give_up(batch.id, worker, rest)
        except LeaseLostError:
            return None
        return batch

    def _lease_one(self, which: ColumnElement[bool], worker: str, now_s: float) -> Batch | None:
        """Leases the oldest batch of `which` that no other worker validates or finalises; None if
        there is none. A worker may lease its own batch again: it has then given up its earlier
        attempt."""
        with self._database.read() as session:  # an idle worker does not take the write lock
            if session.execute(select(Batch.number).where(which).limit(1)).first() is None:
                return None
        free = or_(
            Batch.lease_owner.is_(None), Batch.lease_owner == worker, Batch.lease_until <= now_s
        )
        with self._database.write(durable=False) as session:
            batch = session.scalars(
                select(Batch)
                .where(which, free)
                .order_by(Batch.number)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).one_or_none()
            if batch is not None:
                batch.lease_owner, batch.lease_until = worker, now_s + LEASE_S
                if batch.status == "in_progress":
                    batch.status, batch.finalizing_at = "finalizing", now_s
            return batch

    def input(self, batch: Batch) -> Iterator[bytes]:
        """The bytes of the input file in pieces of at most 1 MiB, even if it was deleted or expired
        after the batch was created. Raises NotFoundError if the bytes are gone."""
        with self._database.read() as session:
            file = session.get(File, batch.input_file)
        if file is None:
            raise NotFoundError(f"the input file of {batch.id} is gone")
        return read_chunks(self._database, file)

    def start(self, batch_id: str, worker: str, now_s: float) -> None:
        """`validating` → `in_progress`: its items may be claimed. Raises LeaseLostError."""
        with self._database.write(durable=True) as session:
            batch = lock_leased(session, batch_id, worker, ["validating"])
            total = select(func.count()).where(BatchItem.batch == batch.number)
            batch.total = session.scalars(total).one()
            batch.status, batch.in_progress_at, batch.lease_owner = "in_progress", now_s, None

    def fail(self, batch_id: str, worker: str, errors: Sequence[LineError], now_s: float) -> None:
        """`validating` → `failed`. Raises LeaseLostError."""
        with self._database.write(durable=True) as session:
            batch = lock_leased(session, batch_id, worker, ["validating"])
            batch.errors = [asdict(error) for error in errors]
            end_batch(self._database, session, batch, "failed", now_s)

    def end_due(self, now_s: float) -> int:
        """Ends batches whose time is over, so that they can be finalised; returns how many. At the
        end of a window, pending and running items expire. CANCELLING_S after a batch was cancelled,
        its running items are cancelled. Later results are dropped."""
        over = Batch.expires_at <= now_s
        given_up = over | (Batch.cancelling_at <= now_s - CANCELLING_S)
        due = or_(
            over & (Batch.status == "validating"),
            over & (Batch.status == "in_progress") & OPEN,
            given_up & (Batch.status == "cancelling") & OPEN,
        )
        with self._database.read() as session:
            numbers = session.scalars(select(Batch.number).where(due)).all()
        return sum(self._end(number, now_s) for number in numbers)

    def _end(self, number: int, now_s: float) -> bool:
        with self._database.write(durable=True) as session:
            (batch,) = lock_batches(session, [number])
            if batch.status == "cancelling":
                return end_items(session, batch, ["running"], "cancelled") > 0
            if batch.status == "in_progress":
                if not end_items(session, batch, ["pending", "running"], "expired"):
                    return False  # every item was answered in time
            elif batch.status != "validating":
                return False
            batch.status, batch.outcome, batch.finalizing_at = "finalizing", "expired", now_s
            batch.lease_owner = None
            return True

    def claim_finalisation(
        self, worker: str, now_s: float, besides: Collection[str] = ()
    ) -> Batch | None:
        """Leases a batch whose items have all ended to `worker`; None if there is none. Skips
        batches that another worker finalises, and those in `besides` (ids). Then call `finalise`.

        Only one thread of a worker may finalise: a worker can claim its own batch again.
        """
        which = Batch.status.in_(["in_progress", "finalizing", "cancelling"]) & ~OPEN
        return self._lease_one(which & Batch.id.not_in(list(besides)), worker, now_s)

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

        @contextmanager
        def leased(durable: bool) -> Iterator[Session]:
            with self._database.write(durable=durable) as session:
                lock_leased(session, batch_id, worker, WRITTEN)
                yield session

        self.give_up(batch_id, worker, rest)
        with leased(False) as session:
            batch = lock_leased(session, batch_id, worker, WRITTEN)
        output, error = (
            FileWriter(leased, id, batch.owner, "batch_output", f"{batch_id}_{kind}.jsonl", now_s)
            for id, kind in (
                (batch.planned_output_id, "output"),
                (batch.planned_error_id, "error"),
            )
        )
        for line, custom_id, state, text in self._ended(batch, rest):
            if state in ("expired", "cancelled"):
                text = unrun_text(batch_id, line, custom_id, state)
            writer = output if state == "completed" else error
            if writer.write(text + b"\n"):
                rest()
        with self._database.write(durable=True) as session:
            batch = lock_leased(session, batch_id, worker, WRITTEN)
            expires_at = None
            if batch.output_expires_after_s is not None:
                expires_at = now_s + batch.output_expires_after_s
            for column, writer in (("output_file_id", output), ("error_file_id", error)):
                if writer.size_bytes:
                    setattr(batch, column, writer.finish(session, now_s, expires_at).id)
                else:
                    session.execute(delete(File).where(File.number == writer.number))
            end_batch(self._database, session, batch, batch.outcome, now_s)
            return batch

    def _ended(
        self, batch: Batch, rest: Callable[[], None]
    ) -> Iterator[Row[int, str, ItemState, bytes]]:
        """Yields line, custom_id, state and text of each item in the order of lines. A batch whose
        validation never ended has none."""
        if batch.in_progress_at is None:
            return
        of_item = and_(ItemResult.batch == BatchItem.batch, ItemResult.line == BatchItem.line)
        query = (
            select(BatchItem.line, BatchItem.custom_id, BatchItem.state, ItemResult.text)
            .outerjoin_from(BatchItem, ItemResult, of_item)
            .where(BatchItem.batch == batch.number)
            .order_by(BatchItem.line)
            .limit(LINES_A_READ)
        )
        line = 0
        while True:
            with self._database.read() as session:
                items = session.execute(query.where(BatchItem.line > line)).all()
            if not items:
                return
            yield from items
            line = items[-1].line
            rest()

    def give_up(self, batch_id: str, worker: str, rest: Callable[[], None] = lambda: None) -> None:
        """Removes what an interrupted validation or finalisation wrote. `worker` keeps its lease.
        `rest` is called between transactions. Raises LeaseLostError."""
        while True:
            with self._database.write(durable=False) as session:
                batch = lock_leased(session, batch_id, worker, ["validating", *WRITTEN])
                if batch.status == "validating":
                    if remove_items(session, batch.number) == 0:
                        return
                else:
                    ids = (batch.planned_output_id, batch.planned_error_id)
                    left = session.scalars(select(File.number).where(File.id.in_(ids))).first()
                    if left is None:
                        return
                    remove_chunks(session, left, CHUNKS_A_COMMIT)
            rest()


def _earlier(session: Session, owner: str, key: str | None, spec: NewBatch) -> Batch | None:
    """What this key made. Raises IdempotencyMismatchError if that was for another spec."""
    if key is None:
        return None
    batch = session.scalars(
        select(Batch).where(Batch.owner == owner, Batch.idempotency_key == key)
    ).one_or_none()
    if batch and any(getattr(batch, name) != asked for name, asked in asdict(spec).items()):
        raise IdempotencyMismatchError(
            f"this idempotency key was used for another request ({batch.id}); use a new key"
        )
    return batch
