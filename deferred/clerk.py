"""The life of the jobs besides their lines: validates, expires, finalises, sweeps.

A thread of its own, since a large file takes seconds that the lines of other jobs must not wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from deferred import lines
from deferred.errors import LeaseLostError, NotFoundError, StoreError, StoreUnavailableError
from deferred.pace import Pace
from deferred.records import Batch, LineError, NewItem, Progress
from deferred.store import JobStore

log = logging.getLogger(__name__)

POLL_S = 1.0  # other servers may have made batches
SWEEP_S = 60.0
BACK_OFF_S = 1.0
ASIDE_S = 30.0  # how long a batch that could not be finalised is left alone: others come first
STROKE_LINES = 4  # a fraction of a millisecond


class _StoppedError(Exception):
    """In the middle of a validation, which is then not ours any more."""


class Clerk:
    """`wake` and `stop` may be called from any thread; all else belongs to the thread of `run`."""

    def __init__(
        self,
        store: JobStore,
        *,
        name: str,
        model: str,
        most_line_bytes: int,
        hurried: Callable[[], bool],
        started: Callable[[], None],
    ) -> None:
        """`hurried`: whether immediate requests wait for the interpreter. `started`: told when a
        batch has lines to be claimed."""
        self._store = store
        self._name = name
        self._model = model
        self._most_line_bytes = most_line_bytes
        self._pace = Pace(hurried)
        self._started = started
        self._news = threading.Event()
        self._sweep_s = 0.0
        self._failed_s: dict[str, float] = {}  # batches that could not be finalised, and when
        self.progress: Progress | None = None  # as of the last turn; None: the store is away

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        self._pace.stop()
        self._news.set()

    def run(self) -> None:
        while not self._pace.stopped:
            wait_s = POLL_S
            try:
                if self._turn():
                    wait_s = 0.0
            except _StoppedError:
                return
            except StoreUnavailableError as error:
                if self.progress is not None:
                    log.error("the job store is unavailable: %s", error)
                self.progress, wait_s = None, BACK_OFF_S
            except Exception:  # a fault of ours must not end all jobs
                log.exception("a turn of the batch clerk failed; it goes on")
                wait_s = BACK_OFF_S
            self._news.wait(wait_s)
            self._news.clear()

    def _turn(self) -> bool:
        """Whether there may be more to do at once."""
        store = self._store
        expired = store.batches.expire_due(time.time())
        found = expired > 0
        if (
            batch := store.batches.claim_validation(self._name, self._model, time.time())
        ) is not None:
            found = True
            try:
                self._validate(batch)
            except LeaseLostError:
                log.info("%s was cancelled, or expired, while it was validated", batch.id)
            except (_StoppedError, StoreError):
                raise
            except Exception as error:  # or it would be claimed again for ever, before all others
                log.exception("%s cannot be validated", batch.id)
                fault = LineError("server_error", f"the file cannot be validated: {error}")
                store.batches.fail(batch.id, self._name, [fault], time.time())
        if self._finalise_one():
            found = True
        self._sweep()
        self.progress = store.progress()
        return found

    def _finalise_one(self) -> bool:
        """Whether there was a batch to finalise."""
        now_s = time.monotonic()
        self._failed_s = {id: s for id, s in self._failed_s.items() if now_s - s < ASIDE_S}
        batches = self._store.batches
        batch = batches.claim_finalisation(self._name, time.time(), self._failed_s)
        if batch is None:
            return False
        try:
            ended = batches.finalise(batch.id, self._name, time.time(), lines.unrun)
            log.info("%s is %s: %s", ended.id, ended.status, ended.counts)
        except LeaseLostError:
            log.info("%s is finalised by another server", batch.id)
        except StoreError:
            raise
        except Exception:  # or it would be claimed again for ever, before all others
            log.exception("%s cannot be finalised; again in %g s", batch.id, ASIDE_S)
            self._failed_s[batch.id] = now_s
        return True

    def _validate(self, batch: Batch) -> None:
        """Raises LeaseLostError, and _StoppedError when the server stops."""
        envelopes = lines.Envelopes(batch.spec.endpoint, self._model, self._most_line_bytes)
        faults: list[LineError] = []
        total = 0

        def items() -> Iterator[NewItem]:
            nonlocal total
            content = self._store.batches.input(batch)
            for number, line in self._paced(lines.split(content, self._most_line_bytes)):
                total += 1
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
            duplicates = self._store.items.add(batch.id, self._name, items())
        except NotFoundError:
            duplicates = []
            faults.append(lines.NO_FILE)
        faults += [lines.duplicate(d.line, d.custom_id, d.first_line) for d in duplicates]
        if not total and not faults:
            faults.append(lines.EMPTY_FILE)
        if faults:
            faults.sort(key=lambda fault: fault.line or 0)
            told = faults[: lines.MOST_ERRORS]
            self._store.batches.fail(batch.id, self._name, told, time.time())
            log.info("%s failed its validation: %s", batch.id, faults[0].message)
            return
        self._store.batches.start(batch.id, self._name, time.time())
        log.info("%s has %d requests", batch.id, total)
        self._started()

    def _paced(self, numbered: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for count, line in enumerate(numbered, start=1):
            yield line
            if count % STROKE_LINES == 0:
                self._pace.rest()
                if self._pace.stopped:
                    raise _StoppedError

    def _sweep(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._sweep_s:
            swept = self._store.sweep(time.time())
            self._sweep_s = now_s if swept.unfinished else now_s + SWEEP_S
