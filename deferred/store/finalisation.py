"""The end of a batch: writes its output and error files in the order of lines, then sets its final
status.

The files' ids are fixed when the batch is created, so an attempt finds and removes what an
interrupted one left. The files become visible in the transaction that ends the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, and_, select, update

from deferred.entities import Batch, BatchStatus, Unrun
from deferred.store.chunks import FileWriter, remove_chunks
from deferred.store.database import AnyRow, Database
from deferred.store.history import end_batch
from deferred.store.schema import batch_items, batches, files, item_results
from deferred.store.transitions import batch_of, lock_leased

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
        row = self.remove_earlier()
        with self._database.write(durable=False) as connection:
            self._check(connection)
            output = _writer(connection, row, row.planned_output_id, "output", now_s)
            error = _writer(connection, row, row.planned_error_id, "error", now_s)
        for item in self._ended(row):
            if item.state in ("expired", "cancelled"):
                text = unrun_text(row.id, item.line, item.custom_id, item.state)
            else:
                text = item.text
            writer = output if item.state == "completed" else error
            if writer.add(text + b"\n"):
                with self._database.write(durable=False) as connection:
                    self._check(connection)
                    writer.flush(connection)
                self._rest()
        with self._database.write(durable=True) as connection:
            self._check(connection)
            return self._end(connection, row, output, error, now_s)

    def _check(self, connection: Connection) -> AnyRow:
        return lock_leased(connection, self._batch_id, self._worker, STATUSES)

    def remove_earlier(self) -> AnyRow:
        """Removes what an interrupted attempt left. Raises LeaseLostError."""
        while True:
            with self._database.write(durable=False) as connection:
                row = self._check(connection)
                ids = (row.planned_output_id, row.planned_error_id)
                number = connection.execute(select(files.c.number).where(files.c.id.in_(ids)))
                left = number.scalars().first()
                if left is None:
                    return row
                remove_chunks(connection, left, CHUNKS_A_COMMIT)
            self._rest()

    def _ended(self, row: AnyRow) -> Iterator[AnyRow]:
        """Yields the batch's items with their texts in the order of lines. A batch whose validation
        never ended has none."""
        if row.in_progress_at is None:
            return
        query = (
            select(
                batch_items.c.line,
                batch_items.c.custom_id,
                batch_items.c.state,
                item_results.c.text,
            )
            .outerjoin_from(
                batch_items,
                item_results,
                and_(
                    item_results.c.batch == batch_items.c.batch,
                    item_results.c.line == batch_items.c.line,
                ),
            )
            .where(batch_items.c.batch == row.number)
            .order_by(batch_items.c.line)
            .limit(LINES_A_READ)
        )
        line = 0
        while True:
            with self._database.read() as connection:
                items = connection.execute(query.where(batch_items.c.line > line)).all()
            if not items:
                return
            yield from items
            line = items[-1].line
            self._rest()

    def _end(
        self,
        connection: Connection,
        row: AnyRow,
        output: FileWriter,
        error: FileWriter,
        now_s: float,
    ) -> Batch:
        expires_at = None
        if row.output_expires_after_s is not None:
            expires_at = now_s + row.output_expires_after_s
        made: dict[str, str | None] = {}
        for column, writer in (("output_file_id", output), ("error_file_id", error)):
            if writer.size_bytes:
                made[column] = writer.finish(connection, now_s, expires_at).id
            else:
                writer.withdraw(connection)
        if made:
            connection.execute(update(batches).where(batches.c.number == row.number).values(made))
        ended = end_batch(self._database, connection, row.number, row.outcome, now_s)
        return batch_of(ended)


def _writer(
    connection: Connection, row: AnyRow, file_id: str, kind: str, now_s: float
) -> FileWriter:
    filename = f"{row.id}_{kind}.jsonl"
    return FileWriter(connection, file_id, row.owner, "batch_output", filename, now_s)
