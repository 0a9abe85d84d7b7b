"""Validates, expires, finalises and sweeps batches.

It runs in a thread apart from the worker's: a large file takes seconds, and the lines of other
batches must not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from deferred import lines
from deferred.errors import LeaseLostError, NotFoundError, StoreError, StoreUnavailableError
from deferred.pace import Pace
from deferred.records import Batch, LineError, NewItem, Progress
from deferred.store import JobStore

log = logging.getLogger(__name__)

POLL_S = 1.0  # other servers may have created batches
SWEEP_S = 60.0
BACK_OFF_S = 1.0
LOOK_S = 1.0  # between two updates of `progress`
ASIDE_S = 30.0  # how long a batch is skipped after a failed step, so that others come first
STROKE_LINES = 4  # validated between two rests: a fraction of a millisecond


class _StoppedError(Exception):
    """The server stops during a step. The step can be repeated."""


class Clerk:
    """`wake` and `stop` may be called from any thread; all else belongs to the thread of `run`."""

    def __init__(
        self,
        store: JobStore,
        *,
        name: str,
        names: Sequence[str],
        most_line_bytes: int,
        retention_s: float,
        hurried: Callable[[], bool],
        started: Callable[[], None],
    ) -> None:
        """`names`: as in `Jobs`. `retention_s`: how long an ended batch is kept. `hurried`: whether
        immediate requests wait for the interpreter. `started`: called when a batch has lines to
        claim."""
        self._store = store
        self._name = name
        self._names = names
        self._most_line_bytes = most_line_bytes
        self._retention_s = retention_s
        self._pace = Pace(hurried)
        self._started = started
        self._news = threading.Event()
        self._sweep_s = 0.0
        self._aside_s: dict[str, float] = {}  # id of a skipped batch: since when
        self._failing = False  # a step of the last turn failed
        self._look_s = 0.0
        self.progress: Progress | None = None  # None: the store is unavailable

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
            except Exception:  # an internal error must not end all jobs
                log.exception("internal error in the batch clerk; it continues")
                wait_s = BACK_OFF_S
            self._news.wait(wait_s)
            self._news.clear()

    def _turn(self) -> bool:
        """Runs each step once. Returns whether there may be more to do now. A failed step does not
        stop the others: on a full disk, the sweep frees space.

        Raises StoreUnavailableError if the database cannot be read, and _StoppedError.
        """
        now_s = time.monotonic()
        self._aside_s = {id: s for id, s in self._aside_s.items() if now_s - s < ASIDE_S}
        found, failed = False, False
        for step in (self._expire, self._validate_one, self._finalise_one, self._sweep):
            try:
                found |= step()
            except _StoppedError:
                raise
            except StoreUnavailableError as error:
                self._look()
                failed = True
                if not self._failing:
                    log.error("the job store failed, batches wait: %s", error)
            except Exception:
                failed = True
                log.exception("internal error in a step of the batch clerk; it continues")
        self._failing = failed
        self._look()
        return found and not failed

    def _look(self) -> None:
        self.progress = self._store.progress()
        self._look_s = time.monotonic() + LOOK_S

    def _rest(self) -> None:
        """Call it between two short pieces of work, outside transactions. Raises _StoppedError,
        StoreUnavailableError."""
        self._pace.rest()
        if self._pace.stopped:
            raise _StoppedError
        if time.monotonic() >= self._look_s:
            self._look()

    def _set_aside(self, batch: Batch) -> None:
        """Skips the batch for a while and removes what the failed step wrote, so that it neither
        blocks other batches nor takes their space. Raises StoreUnavailableError if the database
        itself is unavailable."""
        self._look()
        log.exception("%s failed; the next attempt is in %g s", batch.id, ASIDE_S)
        self._aside_s[batch.id] = time.monotonic()
        try:
            self._store.batches.give_up(batch.id, self._name, self._rest)
        except StoreError as error:
            log.warning("the partial result of %s is kept until then: %s", batch.id, error)

    def _expire(self) -> bool:
        return self._store.batches.end_due(time.time()) > 0

    def _validate_one(self) -> bool:
        """Whether there was a batch to validate."""
        batches = self._store.batches
        batch = batches.claim_validation(
            self._name, self._names[0], time.time(), self._aside_s, self._rest
        )
        if batch is None:
            return False
        try:
            self._validate(batch)
        except LeaseLostError:
            log.info("%s was cancelled or expired during validation", batch.id)
        except _StoppedError:
            raise
        except StoreError:
            self._set_aside(batch)
        except Exception:  # otherwise this batch would be claimed first for ever
            log.exception("%s cannot be validated", batch.id)
            explained = "the file cannot be validated; see the server's log"
            fault = LineError("server_error", explained)
            batches.fail(batch.id, self._name, [fault], time.time())
        return True

    def _finalise_one(self) -> bool:
        """Whether there was a batch to finalise."""
        batches = self._store.batches
        batch = batches.claim_finalisation(self._name, time.time(), self._aside_s)
        if batch is None:
            return False
        try:
            ended = batches.finalise(batch.id, self._name, time.time(), lines.unrun, self._rest)
            log.info("%s is %s: %s", ended.id, ended.status, ended.counts)
        except LeaseLostError:
            log.info("another server finalises %s", batch.id)
        except _StoppedError:
            raise
        except Exception:  # otherwise this batch would be claimed first for ever
            self._set_aside(batch)
        return True

    def _validate(self, batch: Batch) -> None:
        """Raises LeaseLostError, and _StoppedError when the server stops."""
        envelopes = lines.Envelopes(batch.spec.endpoint, self._names, self._most_line_bytes)
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
            log.info("%s failed validation: %s", batch.id, faults[0].message)
            return
        self._store.batches.start(batch.id, self._name, time.time())
        log.info("%s has %d requests", batch.id, total)
        self._started()

    def _paced(self, numbered: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for count, line in enumerate(numbered, start=1):
            yield line
            if count % STROKE_LINES == 0:
                self._rest()

    def _sweep(self) -> bool:
        """Returns False: the rest of a large sweep can wait for the next turn."""
        if time.monotonic() >= self._sweep_s:
            now_s = time.time()
            swept = self._store.sweep(now_s, now_s - self._retention_s, self._rest)
            self._sweep_s = time.monotonic() + (0.0 if swept.unfinished else SWEEP_S)
        return False
