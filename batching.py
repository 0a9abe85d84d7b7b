"""The core: requests wait in one queue, and one background thread decides, iteration by iteration,
which of them the model advances.

Read it with the Orca paper (Yu et al., OSDI '22) beside it. A request is an `Inference`. An
iteration begins with a plan that is started on the model (`BatchingManager.begin`), and finishes
when its tokens are delivered (`finish`). The three loops at the end are the three modes: the same
iteration, each with its policy (`scheduling/`) and its layout (`generate/`). This module is
independent of HTTP, text and torch. Only `drive` waits, on a clock that is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from engine.blocks import Ledger
from engine.failures import Failures
from engine.inference import Inference
from engine.iteration import Flight, ServedRows, Wait
from engine.lifecycle import Lifecycle
from engine.queue import RequestQueue
from engine.records import History, iterated, iteration_record, planned_work
from generate.modes import LAYOUTS, LayOut, Mode
from scheduling.contract import check_plan
from scheduling.growth import with_growth
from seams import (
    Advance,
    End,
    Model,
    Observer,
    OpeningError,
    Outcome,
    Pending,
    Plan,
    Policy,
    Recorder,
    Step,
    View,
)


class EngineFailedError(Exception):
    """The loop has ended, since no request can be advanced any more; all requests failed."""


class BatchingManager:
    """The queue, and the life of a request in it: submitted, admitted, advanced, ended.

    What stands below "from any thread" may be called from any; all else belongs to the thread that
    calls `begin` and `finish`.
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
        lookahead: int = 0,
    ) -> None:
        """`lookahead`: iterations that may be in flight while the next one is planned."""
        self.policy = policy
        self.recorder = recorder
        self.max_batch_size = max_batch_size
        self.lookahead = lookahead
        self.model: Model | None = None  # until it is loaded
        self.queue = RequestQueue(max_waiting, max_waiting_prompt_tokens)
        self.history = History(max_batch_size)
        self.flights: deque[Flight] = deque()  # iterations in flight, the oldest first
        self._life = Lifecycle(self.queue, policy, recorder, self.history, request_timeout_s)
        self._failures = Failures(self._life, self.flights, max_batch_size)
        # by kind: decodes only, or with prefill or a part of one
        self.failed_iterations: Mapping[str, int] = self._failures.iterations
        self._last_end_s = -math.inf
        self.step_since_s: float | None = None  # when the present step began; None between steps
        self._observer = policy if isinstance(policy, Observer) else None

    def serve(self, model: Model, ledger: Ledger) -> None:
        """Requests are accepted from now on."""
        self._life.ledger = ledger
        self.model = model
        self.queue.open(model.context, ledger.budget * ledger.block_tokens)

    # --- from any thread --------------------------------------------------------------------

    @property
    def unavailable(self) -> str | None:
        """Why no requests are accepted; None while they are."""
        if self._failures.verdict is not None:
            return f"the server has failed: {self._failures.verdict}"
        if self.model is None:
            return "the model is still being loaded"
        if (lost := self.model.lost) is not None:
            return f"the model is lost: {lost}"
        return "the server is shutting down" if self.queue.draining else None

    @property
    def ready(self) -> bool:
        return self.unavailable is None

    @property
    def recovers(self) -> bool:
        """Whether the model is lost and may return."""
        lost = self.model is not None and self.model.lost is not None
        return lost and not self.queue.draining and self._failures.verdict is None

    @property
    def memory(self) -> Ledger:
        """The ledger; it has no blocks until there is a model."""
        return self._life.ledger

    @property
    def counts(self) -> dict[str, int]:
        return {"waiting": self.queue.size, "running": len(self._life.resident)}

    @property
    def pending(self) -> int:
        """Waiting requests that are not in the queue yet."""
        return len(self.queue.pending)

    @property
    def serves_immediate(self) -> bool:
        """Whether a connection waits for a queued or running request; nearly up to date."""
        return self.queue.size + len(self._life.resident) > self._life.deferred

    @property
    def busy_since_s(self) -> float | None:
        """When the present stretch with work began; None while there is none."""
        return self.queue.busy_since_s

    def enqueue(self, inference: Inference) -> None:
        """Puts a request into the queue. Raises what `RequestQueue.put` raises."""
        self.queue.put(inference)

    def enqueue_stored(self, inference: Inference) -> None:
        """Like `enqueue`, for a request that the job store keeps until it is complete: the store
        limits number and time, and the request takes no place in the queue."""
        inference.stored = True
        self.enqueue(inference)

    def cancel(self, inference: Inference, end: End = "cancelled") -> None:
        """Ends a request early: its client disconnected, or a stop string was found. Its place is
        free within one iteration."""
        self.queue.leave(inference, end)

    def give_up_overdue(self, now_s: float) -> None:
        """Answers requests that are past their limit, although the loop may hang."""
        self._life.give_up_overdue(now_s)

    def give_up(self, verdict: str, now_s: float) -> None:
        """The loop hangs, so the process must end: answers all clients."""
        self._failures.verdict = verdict
        self.queue.drain()
        self._life.give_up(f"the server has failed: {verdict}", now_s)

    def wake(self) -> None:
        """The lost model is back."""
        self.queue.wake()

    def drain(self) -> None:
        """Accepts no more requests; `drive` returns when the accepted ones have ended."""
        self.queue.drain()

    def abort(self, reason: str) -> None:
        """Fails all unfinished requests, with a message to their clients."""
        self.queue.abort(reason)

    # --- the thread of the loop -------------------------------------------------------------

    def drive(self, lay_out: LayOut, clock: Callable[[], float]) -> None:
        """Runs iterations while there is work, and sleeps on the queue otherwise.
        Raises EngineFailedError."""
        while True:
            wait = None
            try:
                wait = self.step(lay_out, clock)
            except Exception as error:  # the loop must survive it
                self._failures.of_the_loop(error, clock())
            if (verdict := self._failures.verdict) is not None:
                self.queue.abort(f"the server has failed: {verdict}")
                self._life.take_in(clock())  # fails waiting requests and new arrivals
                raise EngineFailedError(verdict)
            self.step_since_s = None
            if wait is not None:
                if not self._life.resident and self.queue.is_over():
                    return
                self.queue.sleep(wait.until_s - clock())

    def step(self, lay_out: LayOut, clock: Callable[[], float]) -> Wait | None:
        """Begins an iteration, and finishes the oldest if no more may be in flight. None: an
        iteration was done, and another may begin at once."""
        self.step_since_s = now_s = clock()
        begun = self.begin(now_s, lay_out)
        if isinstance(begun, Wait) and not self.flights:
            return begun
        if isinstance(begun, Wait) or len(self.flights) > self.lookahead:
            landed = self.flights[0].land()
            self.finish(clock(), landed)
        return None

    def begin(self, now_s: float, lay_out: LayOut) -> Flight | Wait:
        """Plans an iteration and starts it. A wait may be for an iteration in flight, or for a lost
        model."""
        assert self.model is not None
        life, failures = self._life, self._failures
        now_s = life.take_in(now_s)
        waiting, resident = self.queue.waiting, list(life.resident.values())
        if not (waiting or resident):
            return Wait(math.inf)
        alone = failures.alone()
        if self.flights and (
            alone is not None
            or any(flight.hopeless for flight in self.flights)
            or all(inference.done for inference in resident)
        ):
            return Wait(math.inf)  # plan only after the iteration in flight has landed
        if self.model.lost is not None:
            return Wait(life.next_due_s)
        if alone is not None:
            for other in resident:
                if other is not alone:
                    life.preempt(other, now_s)
            waiting, resident = ([], [alone]) if alone.resident else ([alone], [])
        view = View(now_s, waiting, resident, failures.batch_limit, self.memory, life.deferred)
        plan = self.policy.plan(view)
        check_plan(plan, view)
        if self.memory.growth_tokens is not None:
            plan = with_growth(plan, view)
        if any(life.resident[request.id].flights for request in plan.preempt):
            return Wait(math.inf)  # their blocks are being written
        if self.flights:  # the last tokens of some requests are in flight
            plan = replace(plan, advance=[step for step in plan.advance if not step.request.done])
        for request in plan.preempt:
            life.preempt(life.resident[request.id], now_s)
        if plan.advance:
            return self._start(self.model, plan, now_s, lay_out)
        # without a time to wake at, all requests to advance are done or were preempted
        return Wait(now_s if plan.wake_s is None else min(plan.wake_s, life.next_due_s))

    def _start(self, model: Model, plan: Plan, now_s: float, lay_out: LayOut) -> Flight | Wait:
        life, memory, advance = self._life, self.memory, plan.advance
        new = [cast(Inference, step.request) for step in advance if not step.request.resident]
        unopened: Exception | None = None
        if new:
            life.admit(new, now_s)
            try:
                model.open([inference.opening() for inference in new])
            except OpeningError as error:
                for inference in new:
                    if (reason := error.reasons.get(inference.id)) is not None:
                        life.fail([inference], f"the model refuses the request: {reason}", now_s)
                new = [inference for inference in new if inference.resident]
                advance = [step for step in advance if step.request.resident]
                if not advance:
                    return Wait(now_s)
            except Exception as error:
                unopened = error
        if any(inference.computed for inference in new):  # prefix hits leave less to compute
            advance = [Advance(r, min(tokens, r.known - r.computed)) for r, tokens in advance]
        memory.grow(advance)
        rows = cast(Sequence[tuple[Inference, int]], advance)
        held = cast(Sequence[Inference], plan.hold)
        waiting = len(self.queue.waiting)
        work = planned_work(rows, held, life.resident, new, waiting, life.deferred, memory)
        news = memory.news()
        batch: list[Inference] = []
        steps: list[Step] = []
        for inference, tokens in (*rows, *((inference, 0) for inference in held)):
            start = inference.computed
            draw = start + tokens == inference.known and inference.end is None
            blocks = news.get(inference.id, ())
            # half the time of Step(...): 0.3 us less for each row
            steps.append(Step._make((inference.id, start, tokens, draw, blocks, 0)))
            batch.append(inference)
            inference.computed = start + tokens
            inference.expected += draw
            inference.flights += 1
        pending: Pending | Exception
        try:  # right after counting: what fails from here on is uncounted with its flight
            if unopened is not None:
                raise unopened
            steps = list(lay_out(steps))
            pending = model.start(steps, life.take_released())
        except Exception as error:
            pending = error
        flight = Flight(now_s, work, batch, steps, pending, len(life.preempted))
        self.flights.append(flight)
        return flight

    def finish(self, now_s: float, landed: Outcome | Exception) -> None:
        """Delivers the results of the oldest iteration in flight, stamped with the present time."""
        flight = self.flights.popleft()
        flight.leave()
        if flight.discarded:
            self._failures.replan(flight, now_s)
        elif isinstance(landed, Exception):
            self._failures.failed(flight, landed, now_s)
        else:
            self._deliver(flight, landed, now_s)
        self._last_end_s = now_s

    def _deliver(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        life, memory, batch = self._life, self.memory, flight.batch
        sharing = memory.prefix_caching
        start_s = max(flight.start_s, self._last_end_s)
        # before the responses, so that statistics include their tokens
        record = iteration_record(flight.work, batch, outcome, start_s, now_s)
        life.record(self.recorder.iteration, record)
        # those preempted while it was in flight belong to the next one
        preempted = life.preempted[: flight.preempted]
        del life.preempted[: flight.preempted]
        for later in self.flights:
            later.preempted -= flight.preempted
        self.history.add(iterated(flight.work, record, preempted))
        for i, (first, scores) in outcome.prompt_logprobs.items():
            # after a preemption some tokens are computed again and already known
            known = batch[i].prompt_logprobs
            known += scores[len(known) + 1 - first :]
        for i, scores in outcome.logprobs.items():
            if batch[i].end is None:
                batch[i].logprobs += scores
        for inference, step, tokens in zip(batch, flight.steps, outcome.tokens, strict=True):
            if inference.end is None:
                if sharing:
                    memory.share(inference, step.start + step.tokens)
                if tokens:
                    self._append(inference, tokens, now_s)
        if self._observer is not None:
            self._observer.observe(ServedRows(flight, outcome, now_s))
        life.retire(now_s)
        self._failures.succeeded(now_s)

    def _append(self, inference: Inference, tokens: Sequence[int], now_s: float) -> None:
        inference.last_token_s = now_s
        if inference.first_token_s is None:
            inference.first_token_s = now_s
        for token in tokens:
            inference.ids.append(token)
            if token in inference.end_ids:
                inference.end = "stop"
            elif len(inference.ids) == inference.prompt_tokens + inference.max_tokens:
                inference.end = "length"
            if inference.end is not None:
                break
        if inference.end is not None and self.policy.answers == "own":
            self._life.answer(inference, now_s)
        elif inference.streaming:
            inference.news.set()


# --- the three modes ------------------------------------------------------------------------


def no_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """One request at a time, in one row."""
    manager.drive(LAYOUTS["nobatch"], clock)


def static_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """A batch forms, runs until its longest request ends, and leaves together: a rectangle."""
    manager.drive(LAYOUTS["static"], clock)


def dynamic_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """Requests join and leave at every iteration: a ragged pack."""
    manager.drive(LAYOUTS["dynamic"], clock)


LOOPS: dict[Mode, Callable[[BatchingManager, Callable[[], float]], None]] = {
    "nobatch": no_batching_loop,
    "static": static_batching_loop,
    "dynamic": dynamic_batching_loop,
}
