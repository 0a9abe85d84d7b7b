"""How requests become resident and leave, and how they end: done, cancelled, overdue, failed, shut
down. All of it runs in the loop's thread, except `give_up`, for when that thread hangs. The history
keeps what happened last.

The history is always on: it takes some tenths of a microsecond and 25 bytes per row.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from engine.blocks import Ledger
from engine.inference import Inference
from engine.queue import RequestQueue
from scheduling.contract import check_retired
from scheduling.prediction.predictor import LengthPredictor
from seams import (
    IterationRecord,
    Observer,
    Plan,
    Policy,
    Recorder,
    RequestRecord,
    ServiceClass,
)

log = logging.getLogger(__name__)

HISTORY_RECORDS = 2**13  # at most,
HISTORY_ROWS = 2**19  # and fewer if batches are large, so that it takes about 13 MB


class Lifecycle:
    """The waiting requests, and the residents, which hold blocks."""

    def __init__(
        self,
        queue: RequestQueue,
        policy: Policy,
        with_deferred: Callable[[Policy], Policy] | None,
        recorders: Sequence[Recorder],
        history: History,
        request_timeout_s: float,
    ) -> None:
        self.queue = queue
        self._follow(policy)
        self._with_deferred = with_deferred
        self.recorders = recorders
        self.history = history
        self.request_timeout_s = request_timeout_s
        self._too_late = f"not done {request_timeout_s:g} s after its arrival (--request-timeout)"
        self.ledger = Ledger(0)  # until there is a model
        self.resident: dict[int, Inference] = {}
        self.started = self.ended = 0  # iterations, which end in order; the others are in flight
        self.next_due_s = math.inf  # no request is overdue before this time
        self.prefill_tokens = 0  # computed for prompts
        self.lengths = LengthPredictor()
        self.num_deferred = 0  # unfinished requests of that class
        self._preempted: list[int] = []  # requests that no record of an iteration has yet
        self._released: list[int] = []  # released sequences not yet reported to the model
        self._free_slots: list[int] = []  # a heap of those that were given back
        self._idle_since_s = -math.inf
        self._answering = threading.Lock()  # held for moments, and not while anything else runs

    def _follow(self, policy: Policy) -> None:
        self.policy = policy
        self.observer = policy if isinstance(policy, Observer) else None

    def present(self) -> list[Inference]:
        return [*self.queue.waiting, *self.resident.values()]

    # --- arrivals and departures ------------------------------------------------------------

    def take_in(self, now_s: float) -> float:
        """Adds arrivals to the queue; ends requests that were cancelled or cannot be finished.
        Returns the time, since some may have arrived after the clock was read."""
        if not self.queue.unread and now_s < self.next_due_s:
            return now_s
        arrivals, departures, aborting = self.queue.read()
        now_s = max([now_s, *(inference.arrival_s for inference in arrivals)])
        for inference in arrivals:
            if inference.service_class == "deferred":
                self.num_deferred += 1
                if self._with_deferred is not None:  # this is the first one
                    self._follow(self._with_deferred(self.policy))
                    self._with_deferred = None
            self.next_due_s = min(self.next_due_s, inference.due_s)
            inference.prefill_before = self.prefill_tokens
            if inference.predicted is None:
                inference.predicted = self.lengths.predict(inference.user, inference.prompt_tokens)
            user = inference.end_user or inference.user
            self.history.add(
                Arrived(
                    inference.id, inference.arrival_s, inference.prompt_tokens,
                    inference.max_tokens, inference.service_class, inference.request_id, user,
                    inference.program, inference.priority,
                )
            )  # fmt: skip
        if arrivals and self.queue.busy_since_s is None:
            # arrivals during the last iteration of a busy period do not lengthen it twice
            first_s = min(inference.arrival_s for inference in arrivals)
            self.queue.busy_since_s = max(first_s, self._idle_since_s)
        if overdue := self.next_due_s <= now_s:
            self._end_overdue(now_s)
        for inference, end in departures:
            if inference.end is None:
                inference.finish(end)
                # like an end token, a stop string ends a static row's response with its batch
                if end != "stop" or self.policy.answers == "own":
                    self.answer(inference, now_s)
        if aborting is not None:
            for inference in self.present():
                inference.cause = "shutdown"
            self.fail(self.present(), aborting, now_s)
        elif departures or overdue:
            self.drop_ended(now_s)
        return now_s

    def _end_overdue(self, now_s: float) -> None:
        running = [inference for inference in self.present() if inference.end is None]
        for inference in running:
            if inference.due_s <= now_s:
                inference.finish("failed")
                inference.cause, inference.error = "timeout", self._too_late
                self.answer(inference, now_s)
        self.next_due_s = min((i.due_s for i in running if i.end is None), default=math.inf)

    # --- residents --------------------------------------------------------------------------

    def admit(self, new: Sequence[Inference], now_s: float) -> None:
        """Makes requests resident together and assigns their blocks. Tokens of a prefix hit count
        as computed."""
        for inference, hit_tokens in zip(new, self.ledger.open(new), strict=True):
            free = self._free_slots
            inference.slot = heapq.heappop(free) if free else len(self.resident)
            self.resident[inference.id] = inference
            inference.resident = True
            inference.computed = hit_tokens
            if inference.admitted_s is None:
                inference.admitted_s = now_s
                if self.ledger.prefix_caching:
                    inference.cached_tokens = inference.computed
        self.queue.remove_gone()

    def retire(self, now_s: float) -> None:
        """Retires residents, and completes the responses that leave with them. The busy period
        ends with the last one."""
        if self.resident:
            residents = list(self.resident.values())
            retired = self.policy.retire(residents)
            check_retired(retired, residents)
            for request in retired:
                inference = self.resident[request.id]
                if not self.is_in_flight(inference):  # or its blocks are still being written
                    self._release(inference)
                    self.answer(inference, now_s)
        if self.resident or self.queue.waiting or (since_s := self.queue.busy_since_s) is None:
            return
        # in this order, or a reader in between would miss the whole busy period
        for recorder in self.recorders:
            self.notify(recorder.busy, since_s, now_s)
        self.queue.busy_since_s, self._idle_since_s = None, now_s
        if self.ledger.used:
            log.critical(
                "the KV ledger is wrong: the server is idle, and %d of %d blocks are in use",
                self.ledger.used,
                self.ledger.num_blocks,
            )

    def preempt(self, inference: Inference, now_s: float) -> None:
        """Preempts a resident; it is recomputed later from its known tokens."""
        self._release(inference)
        if inference.end is not None:  # it was only held in its batch and need not return
            self.answer(inference, now_s)
            return
        inference.computed = 0
        inference.num_preemptions += 1
        self._preempted.append(inference.id)
        self.queue.put_back(inference)

    def return_preempted(self, preempted: Sequence[int]) -> None:
        """Their iteration is not recorded; the record of the next one names them."""
        self._preempted = [*preempted, *self._preempted]

    def is_in_flight(self, inference: Inference) -> bool:
        return inference.newest_iteration > self.ended

    def without_siblings(self, plan: Plan) -> Plan:
        """The plan without the newcomers that wait. Choices of one prompt compute it once: while
        one of them does, the others wait until they find its blocks, and so do the newcomers behind
        them, which would otherwise overtake. Where residents are preempted for newcomers, all of
        them come."""
        # Nothing is remembered: a choice waits only in an iteration in which another one computes
        # what it needs, so if that one pauses, is preempted or ends, the next plan admits another.
        ledger = self.ledger
        newcomers = [cast(Inference, s.request) for s in plan.advance if not s.request.resident]
        groups = {inference.group for inference in newcomers if ledger.shares(inference)} - {0}
        if not groups or plan.preempt:
            return plan
        advanced = {step.request.id for step in plan.advance}
        computing = [
            (one.group, ledger.shareable(one))
            for one in self.resident.values()
            if one.group in groups
            and one.end is None
            and (self.is_in_flight(one) or one.id in advanced)
        ]
        for place, inference in enumerate(newcomers):
            needed = min(inference.hit_limit, inference.prompt_tokens) // ledger.block_tokens
            if inference.group not in groups or len(ledger.hits(inference)) >= needed:
                continue
            if any(group == inference.group and blocks < needed for group, blocks in computing):
                late = {newcomer.id for newcomer in newcomers[place:]}
                return replace(plan, advance=[s for s in plan.advance if s.request.id not in late])
            computing.append((inference.group, 0))
        return plan

    def lose_model(self, now_s: float) -> None:
        """Preempts all residents: the next model has no sequences, and its blocks are empty."""
        for inference in list(self.resident.values()):
            self.preempt(inference, now_s)
        self.ledger.clear()
        self._released.clear()

    def take_gone(self) -> tuple[list[int], list[int]]:
        """Since the last call: the requests that were preempted, and the sequences that lost their
        blocks. One that has new blocks is opened again, which replaces its old state in the
        model."""
        preempted = self._preempted
        released = [id for id in self._released if id not in self.resident]
        self._preempted, self._released = [], []
        return preempted, released

    def _release(self, inference: Inference) -> None:
        del self.resident[inference.id]
        inference.resident = False
        heapq.heappush(self._free_slots, inference.slot)
        self.ledger.release(inference)
        self._released.append(inference.id)

    # --- ends -------------------------------------------------------------------------------

    def fail(self, batch: Iterable[Inference], message: str, now_s: float) -> None:
        for inference in batch:
            if inference.end is None:
                inference.finish("failed")
                inference.error = message
            self.answer(inference, now_s)
            if inference.resident and not self.is_in_flight(inference):
                self._release(inference)
        self.drop_ended(now_s)

    def drop_ended(self, now_s: float) -> None:
        for inference in self.queue.remove_gone():
            self.answer(inference, now_s)
        self.retire(now_s)

    def answer(self, inference: Inference, now_s: float) -> None:
        """Records it first, so that statistics include a request before its client has the
        response."""
        if inference.recorded:
            return
        with self._answering:
            if inference.record is not None:  # given up
                inference.finish("failed")
            assert inference.end is not None
            inference.record = inference.record_of(inference.end, now_s)
        inference.recorded, inference.need = True, None
        self.ledger.forget(inference)
        if inference.end in ("length", "stop"):
            self.lengths.learn(inference.user, inference.prompt_tokens, inference.record.generated)
        self.queue.ends_s.append(now_s)
        self.num_deferred -= inference.service_class == "deferred"
        for recorder in self.recorders:
            self.notify(recorder.request, inference.record)
        self.history.add(Ended(inference.id, inference.record))
        inference.event.set()
        inference.updated.set()

    def give_up(self, now_s: float, message: str | None = None) -> None:
        """Answers all clients with an error, or without a message those whose requests are past
        their limit, although the loop may hang. It still owns the requests: if it continues, it
        ends and records them, as failed whatever they have received. From any thread."""
        for inference in (*self.queue.everyone(), *list(self.resident.values())):
            if message is None and (inference.end is not None or now_s < inference.due_s):
                continue
            with self._answering:
                if inference.record is not None:
                    continue
                inference.error, inference.cause = message, "shutdown"
                if message is None:
                    inference.error, inference.cause = self._too_late, "timeout"
                inference.record = inference.record_of("failed", now_s)
            inference.event.set()
            inference.updated.set()

    @staticmethod
    def notify(receive: Callable[..., None], *what: object) -> None:
        """Passes something to a recorder. Its error loses a record, never a response."""
        try:
            receive(*what)
        except Exception:
            log.exception("not recorded: %s", what)


@dataclass(frozen=True, slots=True)
class Arrived:
    """The loop accepted a request."""

    request: int
    at_s: float
    prompt_tokens: int
    max_tokens: int
    service_class: ServiceClass
    request_id: str | None = None  # its client's; several sequences may share it
    # as in seams.Request; of a user, the end user where there is one
    user: int = 0
    program: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A request ended, admitted or not."""

    request: int
    record: RequestRecord


Event = Arrived | IterationRecord | Ended


class Newest(NamedTuple):
    """Events that a reader of the history has not read. `next`: the number to read from then."""

    events: Sequence[Event]
    next: int
    missed: int  # events that were overwritten before it read them


class History:
    """The newest events, numbered from 0. One thread adds, any thread may read, and neither waits:
    a reader copies, and drops what was overwritten meanwhile."""

    def __init__(self, max_resident: int) -> None:
        self.most = max(2, min(HISTORY_RECORDS, HISTORY_ROWS // max_resident))
        self._events: list[Event | None] = [None] * self.most
        self._next = 0

    def add(self, event: Event) -> None:
        self._events[self._next % self.most] = event
        self._next += 1  # after the event is stored

    def since(self, number: int) -> Newest:
        """The events from `number` on that are still kept."""
        end = self._next
        first = max(number, self._oldest)
        copied = [self._events[i % self.most] for i in range(first, end)]
        late = max(0, self._oldest - first)
        events = [event for event in copied[late:] if event is not None]
        return Newest(events, max(number, end), max(0, min(first + late, end) - number))

    @property
    def _oldest(self) -> int:
        """The oldest event that is not being overwritten."""
        return max(0, self._next + 1 - self.most)
