"""The end of a batch: writes its output and error files in the order of lines, then sets its final
status.

The files' ids are fixed when the batch is created, so an attempt finds and removes what an
interrupted one left. The files become visible in the transaction that ends the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Row, and_, delete, select
from sqlalchemy.orm import Session

from deferred.entities import Batch, BatchItem, BatchStatus, File, ItemResult, ItemState, Unrun
from deferred.store.database import Database
from deferred.store.files import FileWriter, remove_chunks
from deferred.store.history import end_batch
from deferred.store.transitions import lock_leased

LINES_A_READ = 32  # items whose texts are in memory at once
CHUNKS_A_COMMIT = 16
STATUSES: tuple[BatchStatus, ...] = ("finalizing", "cancelling")


class Finalisation:
    """One attempt by one worker."""

    def __init__(
        self,
        database: Database,
        batch_id: str,
        worker: str,
        rest: Callable[[], None],
    ) -> None:
        """`rest`: called between transactions; an exception from it interrupts the attempt."""
        self._database = database
        self._batch_id = batch_id
        self._worker = worker
        self._rest = rest

    def run(self, now_s: float, unrun_text: Callable[[str, int, str, Unrun], bytes]) -> Batch:
        """Raises LeaseLostError."""
        self.remove_earlier()
        with self._database.write(durable=False) as session:
            batch = self._lock(session)
            output, error = (
                FileWriter(
                    session, id, batch.owner, "batch_output", f"{batch.id}_{kind}.jsonl", now_s
                )
                for id, kind in (
                    (batch.planned_output_id, "output"),
                    (batch.planned_error_id, "error"),
                )
            )
        for line, custom_id, state, text in self._ended(batch):
            if state in ("expired", "cancelled"):
                text = unrun_text(batch.id, line, custom_id, state)
            writer = output if state == "completed" else error
            if writer.add(text + b"\n"):
                with self._database.write(durable=False) as session:
                    self._lock(session)
                    writer.flush(session)
                self._rest()
        with self._database.write(durable=True) as session:
            batch = self._lock(session)
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

    def _lock(self, session: Session) -> Batch:
        return lock_leased(session, self._batch_id, self._worker, STATUSES)

    def remove_earlier(self) -> None:
        """Removes what an interrupted attempt left. Raises LeaseLostError."""
        while True:
            with self._database.write(durable=False) as session:
                batch = self._lock(session)
                ids = (batch.planned_output_id, batch.planned_error_id)
                left = session.scalars(select(File.number).where(File.id.in_(ids))).first()
                if left is None:
                    return
                remove_chunks(session, left, CHUNKS_A_COMMIT)
            self._rest()

    def _ended(self, batch: Batch) -> Iterator[Row[int, str, ItemState, bytes]]:
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
            self._rest()
