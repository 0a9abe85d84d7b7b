"""Executes the lines of batches: claims them, submits them to the engine, saves the results.

One thread, without torch and HTTP. It keeps a bounded number of requests in the engine's queue; the
policy decides when they run. Lines are claimed and results committed in groups, so that a line
costs the interpreter little. While the database is unavailable, running lines continue, their
results wait, and no line is claimed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deferred import lines
from deferred.entities import BatchUsage, Item, Lease, LineResult
from deferred.errors import StoreUnavailableError
from deferred.loop import JobOptions, Loop
from deferred.store import JobStore
from deferred.store.items import CLAIM_BYTES
from deferred.store.transitions import HEARTBEAT_S
from engine.inference import Inference

log = logging.getLogger(__name__)

BURST_LINES = 8  # submitted in a turn while immediate requests run: some milliseconds
TURN_S = 0.02  # shortest time between two turns
FLUSH_S = 0.05  # how long a result waits for others to be committed with it
FLUSH_RESULTS = 256
POLL_S = 1.0  # other servers and other threads may have added lines
BACK_OFF_S = 0.5, 10.0  # first and longest wait for an unavailable store
MOST_TRIES = 3  # of a line whose generation fails
MOST_LOST = 25  # processes that may end while they execute one line

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The endpoint's answer: HTTP status and body."""

    status: int
    body: Json
    usage: BatchUsage


class NotNowError(Exception):
    """The server accepts no requests now, or ended this one for reasons of its own: retry."""


class LineCall(Protocol):
    """A line that is being executed."""

    @property
    def inferences(self) -> Sequence[Inference]: ...

    def read(self) -> LineAnswer | None:
        """The answer; None until it is complete. Raises NotNowError."""
        ...

    def cancel(self) -> None: ...


# (owner, endpoint, body, deadline in seconds from now, updated): puts a line's requests into the
# queue, and sets `updated` when there is something to read. Returns an answer if the endpoint
# refuses the line. Raises NotNowError.
Begin = Callable[[str, str, bytes, float, threading.Event], LineCall | LineAnswer]


@dataclass(slots=True, eq=False)
class _Line:
    item: Item
    tries: int = 0
    call: LineCall | None = None  # None: it is claimed, and has not begun

    @property
    def waits(self) -> bool:
        """It is not submitted, or waits in the engine's queue."""
        return self.call is None or all(one.admitted_s is None for one in self.call.inferences)


class JobWorker(Loop):
    """Claims lines, submits them, and saves their results."""

    name = "batch-worker"
    least_rest_s = TURN_S

    def __init__(
        self,
        store: JobStore,
        options: JobOptions,
        begin: Begin,
        none_left: Callable[[], None] = lambda: None,
    ) -> None:
        """`none_left`: called when all claimed lines have been saved."""
        super().__init__(options)
        self._items = store.items
        self._begin = begin
        self._name = options.worker
        self._none_left = none_left
        self._lines: dict[Lease, _Line] = {}
        self._results: list[LineResult] = []
        self._first_result_s = 0.0
        self._beat_s = 0.0  # earliest time of the next heartbeat, monotonic; so the ones below
        self._claim_s = 0.0
        self._withdraw_s = 0.0
        self._store_s = 0.0
        self._back_off_s = 0.0

    def wake(self) -> None:
        """Call it when there may be lines to claim, or a batch was cancelled."""
        self._claim_s = self._withdraw_s = 0.0
        super().wake()

    def run(self) -> None:
        super().run()
        self._give_back()

    def turn(self) -> float:
        now_s = time.monotonic()
        self._collect(now_s)
        if now_s >= self._store_s:
            try:
                self._flush(now_s)
                self._beat(now_s)
                self._withdraw(now_s)
                self._claim(now_s)
            except StoreUnavailableError as error:
                self._back_off(error, now_s)
            else:
                if self._back_off_s:
                    log.info("the job store is available again")
                self._back_off_s = 0.0
        later_s = self._start()
        due_s = [self._beat_s]
        if self._results:
            due_s.append(self._first_result_s + FLUSH_S)
        if any(line.waits for line in self._lines.values()):
            due_s.append(self._withdraw_s)
        if self._may_claim:
            due_s.append(self._claim_s)
        elif self._claimed and self._room > 0:
            due_s.append(now_s + later_s)
        wait_s = max(min(due_s), self._store_s) - time.monotonic()
        ends = (line.item.batch.expires_at for line in self._lines.values() if line.call)
        return max(0.0, min(wait_s, min(ends, default=math.inf) - time.time()))

    def _collect(self, now_s: float) -> None:
        unix_s = time.time()
        for lease, line in list(self._lines.items()):
            if line.call is None:
                continue
            if line.item.batch.expires_at <= unix_s:
                self._drop(lease)  # the store expires it
                continue
            try:
                answer = line.call.read()
            except NotNowError:
                line.call = None
                continue
            if answer is None:
                continue
            line.call = None
            if answer.status >= 500 and line.tries < MOST_TRIES:
                log.warning("line %d of %s is retried", lease.line, line.item.batch.id)
            else:
                self._finish(line.item, answer, now_s)

    def _finish(self, item: Item, answer: LineAnswer, now_s: float) -> None:
        del self._lines[item.lease]
        if not self._results:
            self._first_result_s = now_s
        batch_id, line = item.batch.id, item.lease.line
        text = lines.answered(batch_id, line, item.custom_id, answer.status, answer.body)
        self._results.append(LineResult(item.lease, answer.status < 400, text, answer.usage))

    def _flush(self, now_s: float) -> None:
        late = self._results and now_s >= self._first_result_s + FLUSH_S
        if not (late or len(self._results) >= FLUSH_RESULTS):
            return
        # the store drops results of lines that another worker took over
        self._items.save(self._name, self._results)
        self._results = []
        if not self._lines:
            self._none_left()

    def _beat(self, now_s: float) -> None:
        if now_s < self._beat_s:
            return
        ours = {*self._lines, *(result.lease for result in self._results)}
        held = self._items.heartbeat(self._name, ours, time.time())
        for lease in self._lines.keys() - held:
            self._drop(lease)
        # after our own heartbeat, so that lines that ran while the store was unavailable stay ours
        self._items.recover(time.time())
        self._beat_s = now_s + HEARTBEAT_S

    def _withdraw(self, now_s: float) -> None:
        """Drops the lines of cancelled batches that have not begun."""
        leases = [lease for lease, line in self._lines.items() if line.waits]
        if now_s < self._withdraw_s or not leases:
            return
        self._withdraw_s = now_s + POLL_S  # set first, so that a concurrent `wake` is not lost
        for lease in self._items.withdraw(self._name, leases):
            self._drop(lease)

    def _claim(self, now_s: float) -> None:
        if now_s < self._claim_s or not self._may_claim:
            return
        self._claim_s = now_s + POLL_S  # as above
        claimed = self._items.claim(
            self._name,
            self.options.names[0],
            self.options.window,
            time.time(),
            CLAIM_BYTES - self._held_bytes,
        )
        self._lines.update((item.lease, _Line(item)) for item in claimed)
        if claimed:
            self._claim_s = 0.0  # there may be more: claim again once these have begun

    @property
    def _claimed(self) -> list[_Line]:
        return [line for line in self._lines.values() if line.call is None]

    @property
    def _may_claim(self) -> bool:
        return not self._claimed and self._room > 0 and self._held_bytes < CLAIM_BYTES

    @property
    def _held_bytes(self) -> int:
        """Size of the bodies of all lines."""
        return sum(len(line.item.body) for line in self._lines.values())

    @property
    def _room(self) -> int:
        calls = (line.call for line in self._lines.values() if line.call is not None)
        return self.options.window - sum(len(call.inferences) for call in calls)

    def _start(self) -> float:
        """Starts claimed lines while there is space; returns how long the others must wait."""
        room, now_s = self._room, time.monotonic()
        most = BURST_LINES if self.options.hurried() else self.options.window
        for line in self._claimed[:most]:
            item = line.item
            left_s = item.batch.expires_at - time.time()
            if room <= 0:
                break
            if left_s <= 0:  # the store expires it
                self._drop(item.lease)
                continue
            if item.lost >= MOST_LOST:
                self._finish(item, _lost(item), now_s)
                continue
            try:
                call = self._begin(
                    item.batch.owner, item.batch.endpoint, item.body, left_s, self.wakeup
                )
            except NotNowError:
                return POLL_S
            if isinstance(call, LineAnswer):
                self._finish(item, call, now_s)
            else:
                line.call = call
                line.tries += 1
                room -= len(call.inferences)
        return 0.0

    def _drop(self, lease: Lease) -> None:
        if (call := self._lines.pop(lease).call) is not None:
            call.cancel()

    def _back_off(self, error: StoreUnavailableError, now_s: float) -> None:
        least_s, most_s = BACK_OFF_S
        if not self._back_off_s:
            log.error("the job store is unavailable, batches wait: %s", error)
        self._back_off_s = min(max(least_s, 2 * self._back_off_s), most_s)
        self._store_s = now_s + self._back_off_s

    def _give_back(self) -> None:
        for lease in list(self._lines):
            self._drop(lease)
        try:
            if self._results:
                self._items.save(self._name, self._results)
            self._items.release(self._name)
        except StoreUnavailableError as error:
            log.warning("lines were not returned; they will be when their lease ends: %s", error)


def _lost(item: Item) -> LineAnswer:
    message = f"the server ended {item.lost} times while it executed this request"
    error = {"message": message, "type": "server_error", "param": None, "code": "server_lost"}
    return LineAnswer(500, {"error": error}, BatchUsage())
