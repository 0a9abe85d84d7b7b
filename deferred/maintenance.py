"""Validates, expires, finalises and sweeps batches.

It runs in a thread apart from the worker's: a large file takes seconds, and the lines of other
batches must not wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from deferred import lines
from deferred.entities import Batch, BatchProgress, LineError, NewItem
from deferred.errors import LeaseLostError, NotFoundError, StoreError, StoreUnavailableError
from deferred.loop import JobOptions, Loop, StoppedError
from deferred.store import JobStore

log = logging.getLogger(__name__)

POLL_S = 1.0  # other servers may have created batches
SWEEP_S = 60.0
BACK_OFF_S = 1.0
LOOK_S = 1.0  # between two updates of `progress`
SKIP_S = 30.0  # how long a batch is skipped after a failed step, so that others come first
BURST_LINES = 4  # validated between two rests: a fraction of a millisecond


class Maintenance(Loop):
    """Takes one step of each kind in a turn: expire, validate, finalise, sweep."""

    name = "batch-maintenance"

    def __init__(
        self, store: JobStore, options: JobOptions, started: Callable[[], None] = lambda: None
    ) -> None:
        """`started`: called when a batch has lines to claim."""
        super().__init__(options)
        self._store = store
        self._worker = options.worker
        self._started = started
        self._sweep_s = 0.0
        self._skipped_s: dict[str, float] = {}  # id of a skipped batch: since when
        self._failing = False  # a step of the last turn failed
        self._look_s = 0.0
        self.progress: BatchProgress | None = None  # None: the store is unavailable

    def turn(self) -> float:
        try:
            return 0.0 if self._steps() else POLL_S
        except StoreUnavailableError as error:
            if self.progress is not None:
                log.error("the job store is unavailable: %s", error)
            self.progress = None
            return BACK_OFF_S

    def _steps(self) -> bool:
        """Runs each step once. Returns whether there may be more to do now. A failed step does not
        stop the others: on a full disk, the sweep frees space.

        Raises StoreUnavailableError if the database cannot be read, and StoppedError.
        """
        now_s = time.monotonic()
        self._skipped_s = {id: s for id, s in self._skipped_s.items() if now_s - s < SKIP_S}
        found, failed = False, False
        for step in (self._expire, self._validate_one, self._finalise_one, self._sweep):
            try:
                found |= step()
            except StoppedError:
                raise
            except StoreUnavailableError as error:
                self._look()
                failed = True
                if not self._failing:
                    log.error("the job store failed, batches wait: %s", error)
            except Exception:
                failed = True
                log.exception("internal error in a step of the maintenance; the others continue")
        self._failing = failed
        self._look()
        return found and not failed

    def _look(self) -> None:
        self.progress = self._store.progress()
        self._look_s = time.monotonic() + LOOK_S

    def _pause(self) -> None:
        """Call it between two short pieces of work, outside transactions. Raises StoppedError,
        StoreUnavailableError."""
        self.rest()
        if self.stopped:
            raise StoppedError
        if time.monotonic() >= self._look_s:
            self._look()

    def _expire(self) -> bool:
        return self._store.batches.end_due(time.time()) > 0

    def _validate_one(self) -> bool:
        """Whether there was a batch to validate."""
        batch = self._store.batches.claim_validation(
            self._worker, self.options.names[0], time.time(), self._skipped_s, self._pause
        )
        return self._advance(batch, self._validate)

    def _finalise_one(self) -> bool:
        """Whether there was a batch to finalise."""
        batches = self._store.batches
        batch = batches.claim_finalisation(self._worker, time.time(), self._skipped_s)
        return self._advance(batch, self._finalise)

    def _advance(self, batch: Batch | None, step: Callable[[Batch], None]) -> bool:
        """A batch whose step fails would otherwise be claimed first for ever. It is skipped for a
        while, and what the step wrote is removed, so that it neither blocks other batches nor takes
        their space. Raises StoppedError, and StoreUnavailableError if the database itself is
        unavailable."""
        if batch is None:
            return False
        try:
            step(batch)
        except LeaseLostError:
            log.info("%s was cancelled, or expired, or another server works on it", batch.id)
        except StoppedError:
            raise
        except Exception:
            self._look()
            log.exception("%s failed; the next attempt is in %g s", batch.id, SKIP_S)
            self._skipped_s[batch.id] = time.monotonic()
            try:
                self._store.batches.give_up(batch.id, self._worker, self._pause)
            except StoreError as error:
                log.warning("the partial result of %s is kept until then: %s", batch.id, error)
        return True

    def _finalise(self, batch: Batch) -> None:
        ended = self._store.batches.finalise(
            batch.id, self._worker, time.time(), lines.unrun, self._pause
        )
        of_all = f"{ended.completed} of {ended.total} requests completed"
        log.info("%s is %s: %s", ended.id, ended.status, of_all)

    def _validate(self, batch: Batch) -> None:
        """A fault of ours fails the batch."""
        try:
            total, faults = self._read(batch)
        except (StoppedError, StoreError):
            raise
        except Exception:
            log.exception("%s cannot be validated", batch.id)
            explained = "the file cannot be validated; see the server's log"
            total, faults = 0, [LineError("server_error", explained)]
        if faults:
            faults = sorted(faults, key=lambda fault: fault.line or 0)[: lines.MOST_ERRORS]
            self._store.batches.fail(batch.id, self._worker, faults, time.time())
            log.info("%s failed validation: %s", batch.id, faults[0].message)
            return
        self._store.batches.start(batch.id, self._worker, time.time())
        log.info("%s has %d requests", batch.id, total)
        self._started()

    def _read(self, batch: Batch) -> tuple[int, list[LineError]]:
        """Stores the good lines; returns how many there are, and what is wrong with the others."""
        most_bytes = self.options.most_line_bytes
        envelopes = lines.Envelopes(batch.endpoint, self.options.names, most_bytes)
        faults: list[LineError] = []
        total = 0

        def items() -> Iterator[NewItem]:
            nonlocal total
            content = self._store.batches.input(batch)
            for number, line in lines.split(content, most_bytes):
                total += 1
                if total % BURST_LINES == 0:
                    self._pause()
                if total > lines.MOST_LINES:
                    faults.append(lines.TOO_MANY_LINES)
                    return
                judged = envelopes.judge(number, line)
                if isinstance(judged, NewItem):
                    yield judged
                    continue
                faults.append(judged)
                if len(faults) == lines.MOST_ERRORS:
                    return

        try:
            for item, first_line in self._store.items.add(batch.id, self._worker, items()):
                faults.append(lines.duplicate(item.line, item.custom_id, first_line))
        except NotFoundError:
            faults.append(lines.NO_FILE)
        if not total and not faults:
            faults.append(lines.EMPTY_FILE)
        return total, faults

    def _sweep(self) -> bool:
        """Returns False: the rest of a large sweep can wait for the next turn."""
        if time.monotonic() >= self._sweep_s:
            now_s = time.time()
            ended_before_s = now_s - self.options.retention_s
            unfinished = self._store.sweep(now_s, ended_before_s, self._pause)
            self._sweep_s = time.monotonic() + (0.0 if unfinished else SWEEP_S)
        return False
