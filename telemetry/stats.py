"""Statistics of a server: receives the records of requests and iterations, and aggregates them on
request.

Receiving is a few additions in the loop's thread; sorting and counting happen in the reader's
thread. Memory is bounded: totals cover everything, percentiles and lists the newest records of
the window since the last reset. No torch, no clock: times come with the records.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from records import IterationRecord, Recorder, RequestRecord
from telemetry.durations import is_completed
from telemetry.figures import Figures, Iterations, Window, figures
from telemetry.totals import Totals

REQUESTS_KEPT = 20_000
ITERATIONS_KEPT = 20_000
ITERATION_COLUMNS = ("start_s", "duration_s", "rows", "tokens", "padding")


class Recorders:
    """A records.Recorder that passes records to several."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def iteration(self, record: IterationRecord) -> None:
        for recorder in self._recorders:
            recorder.iteration(record)

    def request(self, record: RequestRecord) -> None:
        for recorder in self._recorders:
            recorder.request(record)

    def busy(self, start_s: float, end_s: float) -> None:
        for recorder in self._recorders:
            recorder.busy(start_s, end_s)


class Queue(Protocol):
    """What is in flight, as the manager knows it."""

    @property
    def counts(self) -> Mapping[str, int]: ...  # waiting, running

    @property
    def pending(self) -> int: ...  # of the waiting ones, those that were not received yet

    @property
    def busy_since_s(self) -> float | None: ...  # start of the present time with work


class Stats:
    """A records.Recorder for a server. All methods may be called from any thread."""

    def __init__(self, now_s: float) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        self.reset(now_s)

    def reset(self, now_s: float) -> None:
        """Starts a new window. What is in flight counts where it ends."""
        with self._lock:
            self._start_s, self._since_unix_s = now_s, time.time()
            self._at_start = self._totals.since(Totals())
            self._busy_s = 0.0
            self._busy_until_s = 0.0  # end of what `_busy_s` holds
            self._requests = deque[RequestRecord](maxlen=REQUESTS_KEPT)
            self._iterations = deque[tuple[float, float, int, int, int]](maxlen=ITERATIONS_KEPT)

    # --- receiving --------------------------------------------------------------------------

    def iteration(self, record: IterationRecord) -> None:
        with self._lock:
            self._totals.add_iteration(record)
            self._iterations.append(
                (
                    record.start_s,
                    record.duration_s,
                    record.batch_size,
                    record.num_tokens,
                    record.padding,
                )
            )

    def request(self, record: RequestRecord) -> None:
        with self._lock:
            self._totals.add_request(record)
            if is_completed(record):
                self._requests.append(record)

    def busy(self, start_s: float, end_s: float) -> None:
        with self._lock:
            self._busy_s += self._uncounted_s(start_s, end_s)
            self._busy_until_s = end_s

    def _uncounted_s(self, start_s: float, end_s: float) -> float:
        """The part of a busy time that lies in the window and not yet in `_busy_s`. Busy times may
        overlap: they begin with an arrival, which a large body can keep from the queue."""
        return max(0.0, end_s - max(start_s, self._start_s, self._busy_until_s))

    def count_received(self) -> None:
        with self._lock:
            self._totals.received += 1

    def count_rejected(self) -> None:
        with self._lock:
            self._totals.received += 1
            self._totals.rejected += 1

    def count_left(self) -> None:
        """A request whose client left before it was handled."""
        with self._lock:
            self._totals.received += 1
            self._totals.left += 1

    # --- reading ----------------------------------------------------------------------------

    def totals(self) -> Totals:
        """A copy of the sums since the server's start."""
        with self._lock:
            return self._totals.since(Totals())

    def summary(self, now_s: float, queue: Queue) -> Figures:
        """The figures of the window."""
        busy_since_s = queue.busy_since_s
        with self._lock:
            totals = self._totals.since(self._at_start)
            since_unix_s, busy_s = self._since_unix_s, self._busy_s
            if busy_since_s is not None:
                busy_s += self._uncounted_s(busy_since_s, now_s)
            requests, in_flight = list(self._requests), queue.counts
            totals.received += queue.pending
        # sorting is for after the lock, which the loop needs too
        return figures(Window(totals, since_unix_s, busy_s, in_flight, requests))

    def iterations(self) -> Iterations:
        """The newest iterations of the window; times in seconds since its start."""
        with self._lock:
            newest, start_s = list(self._iterations), self._start_s
            total = self._totals.since(self._at_start).iterations.total()
        return {
            "columns": list(ITERATION_COLUMNS),
            "kept": ITERATIONS_KEPT,
            "dropped": total - len(newest),
            "iterations": [[at_s - start_s, *others] for at_s, *others in newest],
        }
