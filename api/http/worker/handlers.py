"""Which requests get a handler, and the handlers' threads.

Before a request waits in the queue it costs a millisecond of the interpreter, for a thread, HTTP,
JSON and tokens. Under more load than a server can serve, the arrivals would take this time from the
engine. So a request that cannot join the batch soon stays in the intake first, as bytes, without a
thread, and is handled later, when its turn is near. Policies then see only the requests nearest to
their turn; the intake is for those that admit in order of arrival.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar

from api.http.errors import ApiError

log = logging.getLogger(__name__)

GENERATION_PATHS = frozenset(
    {
        b"/inference",
        b"/v1/completions",
        b"/v1/chat/completions",
        b"/v1/responses",
        b"/generate",
        b"/generate_stream",
        b"/",
        b"/invocations",
    }
)
AHEAD = 2  # x the residents' limit: requests with a handler, of which half wait in the queue
SPARE = 32  # further ones: enough where batches are small

# when the present request arrived, by the application's clock, if it was pending in the intake
ARRIVED_S: ContextVar[float | None] = ContextVar("arrived_s", default=None)

Item = TypeVar("Item")
Work = Callable[[], None]


@dataclass(slots=True)
class Intake(Generic[Item]):
    """For one thread. `most`: how many requests may have a handler now; a further one is pending,
    as is each behind it. `refusal`: the error for one that may not even be pending. `left` is
    called for each whose client leaves. No request is pending for longer than `patience_s`."""

    most: Callable[[], float] = lambda: math.inf
    refusal: Callable[[], ApiError | None] = lambda: None
    patience_s: float = math.inf
    left: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.perf_counter
    handled: int = 0  # requests that have a handler
    pending: dict[Item, float] = field(default_factory=dict)  # since when, in order of arrival

    def add(self, item: Item) -> None:
        self.pending[item] = self.clock()

    def leave(self, item: Item) -> None:
        """Its client has left."""
        self.left()
        del self.pending[item]

    def take(self) -> tuple[Item, float] | None:
        """The next request to get a handler, with the time of its arrival; None while there is
        none."""
        item = next(iter(self.pending), None)
        if item is None:
            return None
        overdue = self.clock() - self.pending[item] >= self.patience_s
        if not overdue and self.handled >= self.most():
            return None
        self.handled += 1
        return item, self.pending.pop(item)


class Threads:
    """Started when they are needed, and kept. `submit` may be called from any thread. Unlike with
    `concurrent.futures`, a start that the system refuses leaves nothing behind: the work is not
    queued, so its request can be refused."""

    def __init__(self, most: int, *, started: int = 0) -> None:
        """Up to `most` threads, of which `started` start now. Raises RuntimeError."""
        self._most = most
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._free = 0  # threads without work; negative: work that waits for a thread
        for _ in range(started):
            self._start()

    def submit(self, work: Work) -> None:
        """Work waits if all threads are busy. Raises RuntimeError, and does not keep the work, if
        the system refuses a further thread."""
        with self._lock:
            if self._free <= 0 and self._started < self._most:
                self._start()
            self._free -= 1
        self._work.put(work)

    def shutdown(self, wait: bool) -> None:
        """Ends the threads after their work; gunicorn does not wait for it."""
        for _ in range(self._started):
            self._work.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._run, name="handler", daemon=True).start()
        self._started += 1
        self._free += 1

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            try:
                work()
            except BaseException:  # such as SystemExit: the thread serves others
                log.exception("a handler's thread failed")
            del work  # an idle thread holds no request
            with self._lock:
                self._free += 1
