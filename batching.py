"""The heart: requests wait in one queue, and one background thread decides, iteration by
iteration, which of them the model advances.

Read it with the Orca paper (Yu et al., OSDI '22) beside it. A request is an `Inference`,
`BatchingManager.step` is one iteration (plan, execute, deliver), and the three loops at the end
are the three modes: the same step, each with its policy (`scheduling/`) and its layout
(`generate/`). This module knows nothing of HTTP, text or torch, and reads no clock: time comes in
from the loop that drives it.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from failures import Failures
from generate import dynamic, nobatch, static
from inference import DrainingError, Inference, TooLongError
from queueing import RequestQueue
from records import iteration_record, request_record
from scheduling.contract import check_plan, check_retired
from scheduling.growth import Growth, with_growth
from seams import (
    KV,
    Advance,
    Draw,
    End,
    Model,
    Outcome,
    OutOfMemoryError,
    Plan,
    Policy,
    RaggedModel,
    Recorder,
    Row,
    View,
)

log = logging.getLogger(__name__)

Mode = Literal["nobatch", "static", "dynamic"]
Generate = Callable[[Any, Sequence[Row]], Outcome]  # the layout of a mode and the model it needs

GROWTH_TOKENS = 64  # of optimistic admission; each growth copies what the sequence holds
ITERATIONS_TO_REGROW = 100  # after running out of memory, one more row is tried this often


class EngineFailedError(Exception):
    """The loop has ended since nothing can be advanced any more; all requests were failed."""


@dataclass(slots=True)
class _Resident:
    """A request's place. It owns the KV memory, so giving up the place frees it."""

    inference: Inference
    kv: KV


class BatchingManager:
    """The queue, and the life of a request in it: submitted, admitted, advanced, ended.

    `submit`, `submit_stored`, `cancel`, `drain` and `abort` may be called from any thread; all else
    belongs to the thread that calls `step`.
    """

    def __init__(
        self,
        policy: Policy,
        recorder: Recorder,
        *,
        max_batch_size: int,
        max_waiting: int,
        max_waiting_prompt_tokens: float = math.inf,
        request_timeout_s: float = math.inf,
        growth_tokens: int | None = None,
    ) -> None:
        """`growth_tokens`: None reserves at admission all that a request may need; a number admits
        it with room for so many further tokens, and as many again whenever they are used up."""
        self.policy = policy
        self.recorder = recorder
        self.max_batch_size = max_batch_size
        self.max_waiting = max_waiting
        self.request_timeout_s = request_timeout_s
        self.growth_tokens = growth_tokens
        self.model: Model | None = None  # until it is loaded
        self.failed_iterations: Counter[str] = Counter()  # prefill (also in part), decode
        self._failures = Failures()
        self._queue = RequestQueue(max_waiting, max_waiting_prompt_tokens)
        self._resident: dict[int, _Resident] = {}
        self._batch_limit = max_batch_size
        self._iterations_since_shrunk = 0
        self._idle_since_s = -math.inf
        self._next_due_s = math.inf  # nobody is overdue before
        self._deferred = 0  # requests of that class without an answer

    # --- from any thread --------------------------------------------------------------------

    @property
    def unavailable(self) -> str | None:
        """Why nothing is taken in; None while requests are."""
        if self._failures.verdict is not None:
            return f"the server has failed: {self._failures.verdict}"
        if self.model is None:
            return "the model is still being loaded"
        return "the server is shutting down" if self._queue.draining else None

    @property
    def ready(self) -> bool:
        return self.unavailable is None

    @property
    def counts(self) -> dict[str, int]:
        return {"waiting": self._queue.size, "running": len(self._resident)}

    @property
    def serves_immediate(self) -> bool:
        """Whether somebody waits on a connection for what is queued or runs; as good as now."""
        return self._queue.size + len(self._resident) > self._deferred

    @property
    def busy_since_s(self) -> float | None:
        """When the present stretch with work began; None while there is none."""
        return self._queue.busy_since_s

    @property
    def max_waiting_deferred(self) -> int:
        return self._queue.max_waiting_deferred

    @property
    def retry_after_s(self) -> float:
        """An estimate of when there will be room for one who is refused now."""
        return self._queue.retry_after_s

    def submit(self, inference: Inference) -> None:
        """Puts a request into the queue. Raises a RefusedError, and ValueError for one that could
        never advance or never end."""
        if not inference.prompt_tokens or inference.max_tokens < 1:
            raise ValueError(
                "a request has at least one prompt token, at least one token to generate"
            )
        if self.model is None:
            raise DrainingError("the model is still being loaded")
        total = inference.prompt_tokens + inference.max_tokens
        if total > self.model.context:
            raise TooLongError(
                f"prompt ({inference.prompt_tokens} tokens) and num_tokens "
                f"({inference.max_tokens}) exceed the model's context of {self.model.context}"
            )
        if (cost := self.model.memory.cost([inference.need])) > self.model.memory.budget:
            raise TooLongError(
                f"the request takes {cost} tokens of KV memory, the server has "
                f"{self.model.memory.budget}"
            )
        inference.growth_tokens = self.growth_tokens
        self._queue.put(inference)

    def submit_stored(self, inference: Inference) -> None:
        """As `submit`, for a request that is kept elsewhere until its answer is: the limits of the
        queue and of time are its keeper's business, and it takes nobody's place in the queue."""
        inference.stored = True
        self.submit(inference)

    def cancel(self, inference: Inference, end: End = "cancelled") -> None:
        """Ends a request before its time: its client left, or found what it was looking for.
        Its place is free within one iteration."""
        self._queue.leave(inference, end)

    def drain(self) -> None:
        """Takes in nothing more; `drive` returns when all that was accepted has ended."""
        self._queue.drain()

    def abort(self, reason: str) -> None:
        """Fails whatever has not ended, with a message to its client."""
        self._queue.abort(reason)

    # --- the thread of the loop -------------------------------------------------------------

    def drive(self, generate: Generate, clock: Callable[[], float]) -> None:
        """Steps back to back while there is work, sleeps on the mailbox while there is none.
        Raises EngineFailedError."""
        while True:
            try:
                wake_s = self.step(clock(), generate)
            except Exception as error:  # a fault of ours or of a policy: the loop must survive it
                log.exception("the loop failed; its requests are failed, it goes on")
                self._failures.failed(self._present(), error)
                self._fail_all(f"internal error: {error}", clock())
                wake_s = None
            if (verdict := self._failures.verdict) is not None:
                self._queue.abort(f"the server has failed: {verdict}")
                self._take_in(clock())  # fails whoever waits, and those who came meanwhile
                raise EngineFailedError(verdict)
            if not self._resident and self._queue.is_over():
                return
            self._queue.sleep(math.inf if wake_s is None else wake_s - clock())

    def step(self, now_s: float, generate: Generate) -> float | None:
        """One iteration: plan, execute, deliver. Returns when to be called again; None means
        that nothing is to be done until someone arrives."""
        self._take_in(now_s)
        if not (self._queue.waiting or self._resident):
            return None
        assert self.model is not None
        view = View(
            now_s,
            self._queue.waiting,
            [resident.inference for resident in self._resident.values()],
            self._batch_limit,
            self.model.memory,
            self._deferred,
        )
        plan = self.policy.plan(view)
        check_plan(plan, view)
        growth = self._growth(plan, view)
        for request in growth.preempt:
            self._preempt(self._resident[request.id].inference, now_s)
        if not plan.advance:
            return self._wake_s(plan)
        if not growth.advance:  # all who were to advance gave up their places
            return now_s
        batch: list[Inference] = [step.request for step in growth.advance]  # type: ignore[misc]
        try:
            self._grow(growth)
            self._admit(batch, now_s)
            outcome = generate(
                self.model,
                [self._row(step.tokens, i) for step, i in zip(growth.advance, batch, strict=True)],
            )
        except OutOfMemoryError as error:
            give_up, why = self._shrink, str(error)
        except Exception as error:  # whatever the model raises harms this iteration alone
            # the traceback as text: a log record that is kept must not keep KV memory alive
            log.error("an iteration failed\n%s", traceback.format_exc())
            decodes = all(step.tokens == 1 and step.request.generated for step in growth.advance)
            self.failed_iterations["decode" if decodes else "prefill"] += 1
            self._failures.failed(batch, error)
            give_up, why = self._fail, f"the model failed: {error}"
        else:
            return self._deliver(growth.advance, batch, outcome, now_s)
        give_up(batch, why, now_s)  # the exception, and with it the handles it saw, is gone by now
        return now_s

    def _take_in(self, now_s: float) -> None:
        """Arrivals join the queue; those who left, and those who cannot be finished, end."""
        mail = self._queue.read()
        for inference in mail.arrivals:
            self._deferred += inference.service_class == "deferred"
            self._next_due_s = min(self._next_due_s, self._due_s(inference))
        if mail.arrivals and self.busy_since_s is None:
            # those who came during the last iteration of a stretch do not lengthen it twice
            first_s = min(inference.arrival_s for inference in mail.arrivals)
            self._queue.busy_since_s = max(first_s, self._idle_since_s)
        if overdue := self._next_due_s <= now_s:
            self._end_overdue(now_s)
        for inference, end in mail.departures:
            if not inference.done:
                inference.end = end
                # a stop that the door found leaves when an end token would: with its place, if so
                if end != "stop" or self.policy.answers == "own":
                    self._answer(inference, now_s)
        if mail.aborting is not None:
            for inference in self._present():
                inference.cut_by = "shutdown"
            self._fail_all(mail.aborting, now_s)
        elif mail.departures or overdue:
            self._drop_done(now_s)

    def _end_overdue(self, now_s: float) -> None:
        running = [inference for inference in self._present() if not inference.done]
        for inference in running:
            if self._due_s(inference) <= now_s:
                inference.end, inference.cut_by = "failed", "timeout"
                inference.error = (
                    f"not done {self.request_timeout_s:g} s after its arrival (--request-timeout)"
                )
                self._answer(inference, now_s)
        self._next_due_s = min((self._due_s(i) for i in running if not i.done), default=math.inf)

    def _present(self) -> list[Inference]:
        return [*self._queue.waiting, *(resident.inference for resident in self._resident.values())]

    def _due_s(self, inference: Inference) -> float:
        return math.inf if inference.stored else inference.arrival_s + self.request_timeout_s

    def _wake_s(self, plan: Plan) -> float:
        """Of a plan that waits: no later than the next request is due."""
        assert plan.wake_s is not None
        return min(plan.wake_s, self._next_due_s)

    def _growth(self, plan: Plan, view: View) -> Growth:
        if self.growth_tokens is None:
            return Growth(plan.advance, plan.preempt, {})
        return with_growth(plan, view, self.growth_tokens)

    def _grow(self, growth: Growth) -> None:
        for id, room in growth.room.items():
            resident = self._resident[id]
            cast(RaggedModel, self.model).grow(resident.kv, room)
            resident.inference.room = room

    def _admit(self, batch: Sequence[Inference], now_s: float) -> None:
        new = [inference for inference in batch if inference.id not in self._resident]
        if not new:
            return
        assert self.model is not None
        needs = [inference.need for inference in new]
        kvs = self.model.allocate(needs)
        for inference, kv, need in zip(new, kvs, needs, strict=True):
            self._resident[inference.id] = _Resident(inference, kv)
            inference.room = need.known + need.further
            if inference.admitted_s is None:
                inference.admitted_s = now_s
        self._queue.admitted({inference.id for inference in new})

    def _row(self, tokens: int, inference: Inference) -> Row:
        start = inference.computed
        wanted = tokens > 0 and start + tokens == inference.known and not inference.done
        of_prompt = (
            inference.sampling.prompt_logprobs is not None
            and len(inference.prompt_logprobs) < inference.prompt_tokens - 1
            and not inference.done
        )
        draw = None
        if wanted or of_prompt:
            draw = Draw(inference.sampling, inference.ids, inference.prompt_tokens, wanted)
        return Row(
            self._resident[inference.id].kv,
            start,
            inference.ids[start : start + tokens],
            draw,
        )

    def _deliver(
        self,
        advance: Sequence[Advance],
        batch: Sequence[Inference],
        outcome: Outcome,
        now_s: float,
    ) -> float:
        end_s = now_s + outcome.duration_s
        # before the answers, so that statistics hold their tokens
        self._record(self.recorder.iteration, iteration_record(now_s, advance, batch, outcome))
        for i, (step, inference) in enumerate(zip(advance, batch, strict=True)):
            # after a preemption the prompt is computed again, its logprobs are known already
            known = len(inference.prompt_logprobs) - inference.computed
            inference.prompt_logprobs += outcome.prompt_logprobs.get(i, ())[known:]
            inference.computed += step.tokens
            if i in outcome.logprobs:
                inference.logprobs.append(outcome.logprobs[i])
            if (token := outcome.tokens[i]) is not None:
                self._append(inference, token, end_s)
        self._iterations_since_shrunk += 1
        if self._iterations_since_shrunk % ITERATIONS_TO_REGROW == 0:
            self._batch_limit = min(self._batch_limit + 1, self.max_batch_size)
        self._retire(end_s)
        self._failures.succeeded()
        return end_s

    def _append(self, inference: Inference, token: int, now_s: float) -> None:
        inference.ids.append(token)
        inference.last_token_s = now_s
        if inference.first_token_s is None:
            inference.first_token_s = now_s
        if token in inference.end_ids:
            inference.end = "stop"
        elif inference.generated == inference.max_tokens:
            inference.end = "length"
        if inference.done and self.policy.answers == "own":
            self._answer(inference, now_s)
        elif inference.streaming:
            inference.news.set()

    def _retire(self, now_s: float) -> None:
        """Places that are given up, and the answers that leave with them."""
        if self._resident:
            residents = [resident.inference for resident in self._resident.values()]
            retired = self.policy.retire(residents)
            check_retired(retired, residents)
            for request in retired:
                self._answer(self._resident.pop(request.id).inference, now_s)
        self._go_idle(now_s)

    def _go_idle(self, now_s: float) -> None:
        busy_since_s = self.busy_since_s
        if self._resident or self._queue.waiting or busy_since_s is None:
            return
        # in this order, or whoever asks in between would miss the whole stretch
        self._record(self.recorder.busy, busy_since_s, now_s)
        self._queue.busy_since_s, self._idle_since_s = None, now_s
        assert self.model is not None
        if self.model.memory.used:
            log.critical(
                "KV books do not close: idle, and %d of %d tokens are in use",
                self.model.memory.used,
                self.model.memory.budget,
            )

    def _preempt(self, inference: Inference, now_s: float) -> None:
        """Gives up the place; what was computed is computed again from the known tokens."""
        del self._resident[inference.id]
        if inference.done:  # it held a place in a batch, and has nothing to come back for
            self._answer(inference, now_s)
            return
        inference.computed = inference.room = 0
        inference.preemptions += 1
        self._queue.put_back(inference)

    def _shrink(self, batch: Sequence[Inference], message: str, now_s: float) -> None:
        """Out of memory: the same requests again in smaller batches, before anyone is failed."""
        # those who are paused hold memory too, and one who found none may find it when they end
        present = len({*self._resident, *(inference.id for inference in batch)})
        if present == 1:
            self._fail(batch, f"out of memory: {message}", now_s)
            return
        self._batch_limit = max(1, min(self._batch_limit, present) // 2)
        self._iterations_since_shrunk = 0
        log.warning(
            "out of memory with %d requests; the limit is now %d", present, self._batch_limit
        )
        for inference in batch:
            if inference.id in self._resident:
                self._preempt(inference, now_s)
        self._drop_done(now_s)

    def _fail(self, batch: Sequence[Inference], message: str, now_s: float) -> None:
        for inference in batch:
            self._resident.pop(inference.id, None)
            if not inference.done:
                inference.end, inference.error = "failed", message
            self._answer(inference, now_s)
        self._drop_done(now_s)

    def _drop_done(self, now_s: float) -> None:
        for inference in self._queue.remove_done():
            self._answer(inference, now_s)
        self._retire(now_s)

    def _fail_all(self, message: str, now_s: float) -> None:
        self._fail(self._present(), message, now_s)

    def _answer(self, inference: Inference, now_s: float) -> None:
        """Records it first, so that statistics hold a request before its client has the answer."""
        if inference.record is not None:
            return
        inference.record = request_record(inference, now_s)
        self._queue.note_end(now_s)
        self._deferred -= inference.service_class == "deferred"
        self._record(self.recorder.request, inference.record)
        inference.event.set()
        inference.news.set()

    @staticmethod
    def _record(take: Callable[..., None], *what: object) -> None:
        """A fault in the statistics costs a record, never an answer."""
        try:
            take(*what)
        except Exception:
            log.exception("not recorded: %s", what)


# --- the three modes ------------------------------------------------------------------------


def no_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """One request at a time, in one row."""
    manager.drive(nobatch.generate, clock)


def static_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """A batch that forms, runs to its longest request's end, and leaves as one: a rectangle."""
    manager.drive(static.generate, clock)


def dynamic_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """Requests join and leave at every iteration: a ragged pack."""
    manager.drive(dynamic.generate, clock)


LOOPS: dict[Mode, Callable[[BatchingManager, Callable[[], float]], None]] = {
    "nobatch": no_batching_loop,
    "static": static_batching_loop,
    "dynamic": dynamic_batching_loop,
}
