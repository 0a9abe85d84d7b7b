"""How requests end: done, cancelled, overdue, failed, shut down; and how one that gives up its
place comes back to the queue. All of it happens in the loop's thread."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable

from inference import Inference
from memory import BaseLedger
from queueing import RequestQueue
from records import Arrived, Ended, History, request_record
from scheduling.contract import check_retired
from seams import Policy, Recorder

log = logging.getLogger(__name__)


class Lifecycle:
    """The requests that are here: those that wait, and the residents, which hold blocks."""

    def __init__(
        self,
        queue: RequestQueue,
        policy: Policy,
        recorder: Recorder,
        history: History,
        request_timeout_s: float,
    ) -> None:
        self.queue = queue
        self.policy = policy
        self.recorder = recorder
        self.history = history
        self.request_timeout_s = request_timeout_s
        self.ledger: BaseLedger | None = None  # as soon as there is a model
        self.resident: dict[int, Inference] = {}
        self.released: list[int] = []  # sequences that the model has not been told of
        self.next_due_s = math.inf  # nobody is overdue before
        self.deferred = 0  # requests of that class without an answer
        self.preempted: list[int] = []  # since the last iteration that was recorded
        self._lanes: list[int] = []  # a heap of those that were given back
        self._idle_since_s = -math.inf

    def present(self) -> list[Inference]:
        return [*self.queue.waiting, *self.resident.values()]

    # --- what happened outside --------------------------------------------------------------

    def take_in(self, now_s: float) -> None:
        """Arrivals join the queue; requests that left, or cannot be finished, end."""
        mail = self.queue.read()
        for inference in mail.arrivals:
            self.deferred += inference.service_class == "deferred"
            self.next_due_s = min(self.next_due_s, self._due_s(inference))
            self.history.add(
                Arrived(
                    inference.id,
                    inference.arrival_s,
                    inference.prompt_tokens,
                    inference.max_tokens,
                    inference.service_class,
                )
            )
        if mail.arrivals and self.queue.busy_since_s is None:
            # arrivals during the last iteration of a stretch do not lengthen it twice
            first_s = min(inference.arrival_s for inference in mail.arrivals)
            self.queue.busy_since_s = max(first_s, self._idle_since_s)
        if overdue := self.next_due_s <= now_s:
            self._end_overdue(now_s)
        for inference, end in mail.departures:
            if not inference.ended:
                inference.end = end
                # a stop string leaves when an end token would: with its place, if answers do
                if end != "stop" or self.policy.answers == "own":
                    self.answer(inference, now_s)
        if mail.aborting is not None:
            for inference in self.present():
                inference.cut_by = "shutdown"
            self.fail_all(mail.aborting, now_s)
        elif mail.departures or overdue:
            self.drop_ended(now_s)

    def _end_overdue(self, now_s: float) -> None:
        running = [inference for inference in self.present() if not inference.ended]
        for inference in running:
            if self._due_s(inference) <= now_s:
                inference.end, inference.cut_by = "failed", "timeout"
                inference.error = (
                    f"not done {self.request_timeout_s:g} s after its arrival (--request-timeout)"
                )
                self.answer(inference, now_s)
        self.next_due_s = min((self._due_s(i) for i in running if not i.ended), default=math.inf)

    def _due_s(self, inference: Inference) -> float:
        return math.inf if inference.stored else inference.arrival_s + self.request_timeout_s

    # --- places -----------------------------------------------------------------------------

    def admit(self, inference: Inference, hit_tokens: int, now_s: float) -> None:
        inference.lane = heapq.heappop(self._lanes) if self._lanes else len(self.resident)
        self.resident[inference.id] = inference
        inference.resident = True
        inference.computed = hit_tokens
        if inference.admitted_s is None:
            inference.admitted_s = now_s
            assert self.ledger is not None
            if self.ledger.prefix_caching:
                inference.cached_tokens = hit_tokens

    def retire(self, now_s: float) -> None:
        """Places that are given up, and the answers that leave with them."""
        if self.resident:
            residents = list(self.resident.values())
            retired = self.policy.retire(residents)
            check_retired(retired, residents)
            for request in retired:
                inference = self.resident[request.id]
                if not inference.flights:  # else its blocks are still being written
                    self._release(inference)
                    self.answer(inference, now_s)
        self._go_idle(now_s)

    def preempt(self, inference: Inference, now_s: float) -> None:
        """Gives up the place; what was computed is computed again from the known tokens."""
        self._release(inference)
        if inference.ended:  # it held a place in a batch, and has nothing to come back for
            self.answer(inference, now_s)
            return
        inference.computed = inference.expected = 0
        inference.preemptions += 1
        self.preempted.append(inference.id)
        self.queue.put_back(inference)

    def lose_model(self) -> None:
        """Everyone was preempted: the next model has been told of nobody, its blocks are empty."""
        assert self.ledger is not None
        self.ledger.clear()
        self.released.clear()

    def _release(self, inference: Inference) -> None:
        assert self.ledger is not None
        del self.resident[inference.id]
        inference.resident = False
        heapq.heappush(self._lanes, inference.lane)
        self.ledger.release(inference)
        self.released.append(inference.id)

    # --- ends -------------------------------------------------------------------------------

    def fail(self, batch: Iterable[Inference], message: str, now_s: float) -> None:
        for inference in batch:
            if not inference.ended:
                inference.end, inference.error = "failed", message
            self.answer(inference, now_s)
            if inference.resident and not inference.flights:
                self._release(inference)
        self.drop_ended(now_s)

    def fail_all(self, message: str, now_s: float) -> None:
        self.fail(self.present(), message, now_s)

    def drop_ended(self, now_s: float) -> None:
        for inference in self.queue.remove_ended():
            self.answer(inference, now_s)
        self.retire(now_s)

    def answer(self, inference: Inference, now_s: float) -> None:
        """Records it first, so that statistics hold a request before its client has the answer."""
        if inference.record is not None:
            return
        assert self.ledger is not None
        inference.record = request_record(inference, now_s)
        self.ledger.forget(inference)
        self.queue.note_end(now_s)
        self.deferred -= inference.service_class == "deferred"
        self.record(self.recorder.request, inference.record)
        self.history.add(Ended(inference.id, inference.record))
        inference.event.set()
        inference.news.set()

    def _go_idle(self, now_s: float) -> None:
        busy_since_s = self.queue.busy_since_s
        if self.resident or self.queue.waiting or busy_since_s is None:
            return
        # in this order, or whoever asks in between would miss the whole stretch
        self.record(self.recorder.busy, busy_since_s, now_s)
        self.queue.busy_since_s, self._idle_since_s = None, now_s
        assert self.ledger is not None
        if self.ledger.used:
            log.critical(
                "KV books do not close: idle, and %d of %d blocks are in use",
                self.ledger.used,
                self.ledger.budget,
            )

    @staticmethod
    def record(take: Callable[..., None], *what: object) -> None:
        """A fault in the statistics costs a record, never an answer."""
        try:
            take(*what)
        except Exception:
            log.exception("not recorded: %s", what)
