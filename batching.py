"""The core: requests wait in one queue, and one background thread decides, iteration by iteration,
which of them the model advances.

Read it with the Orca paper (Yu et al., OSDI '22) beside it. A request is an `Inference`. An
iteration begins with a plan that is started on the model (`BatchingManager.begin`), and finishes
when its tokens are delivered (`finish`). The three loops at the end are the three modes: the same
iteration, each with its policy (`scheduling/`) and its layout (`generate/`). This module is
independent of HTTP, text and torch. Only `sleep` waits, on a clock that is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from engine.blocks import Ledger
from engine.failures import Failures
from engine.inference import NO_DRAFTS, Inference
from engine.iteration import Iteration, ServedRows, Wait, enter
from engine.lifecycle import History, Lifecycle
from engine.queue import RequestQueue
from engine.speculation import Speculation
from generate.modes import MODES, LayOut, ModeName
from scheduling.contract import check_plan
from scheduling.growth import with_growth
from seams import (
    Advance,
    Clock,
    End,
    IterationRecord,
    Model,
    OpeningError,
    Outcome,
    Pending,
    Plan,
    Policy,
    Recorder,
    View,
)


class EngineFailedError(Exception):
    """The loop has ended, since no request can be advanced any more; all requests failed."""


class BatchingManager:
    """The queue, and the life of a request in it: submitted, admitted, advanced, ended.

    What stands before "a step of the loop" is for any thread: handlers submit and cancel requests,
    others ask how the engine is, and none of it waits for the loop. All that follows is for the
    thread of the loop alone.
    """

    def __init__(
        self,
        policy: Policy,
        recorders: Sequence[Recorder],
        *,
        max_batch_size: int,
        max_waiting: int,
        max_resident: int | None = None,
        max_waiting_prompt_tokens: float = math.inf,
        request_timeout_s: float = math.inf,
        lookahead: int = 0,
        with_deferred: Callable[[Policy], Policy] | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """`max_batch_size`: rows of an iteration. `max_resident`: requests that hold KV memory,
        those that a policy pauses included; None: as many as rows.
        `lookahead`: iterations that may be in flight while the next one is planned.
        `with_deferred`: the policy that replaces the given one when the first deferred request
        arrives; None: it stays.
        `speculation`: plans drafts; None: there are none."""
        self.recorders = recorders
        self.max_batch_size = max_batch_size
        self.max_resident = max_batch_size if max_resident is None else max_resident
        self.lookahead = lookahead
        self.speculation = speculation
        self.model: Model | None = None  # until it is loaded
        self.queue = RequestQueue(max_waiting, max_waiting_prompt_tokens)
        self.history = History(self.max_resident)
        self.in_flight: deque[Iteration] = deque()  # the oldest first
        self._life = Lifecycle(
            self.queue, policy, with_deferred, recorders, self.history, request_timeout_s
        )
        self._failures = Failures(self._life, self.in_flight, max_batch_size)
        # by kind: decodes only, or with prefill or a part of one
        self.failed_iterations: Mapping[str, int] = self._failures.iterations
        self._last_end_s = -math.inf
        self.step_since_s: float | None = None  # when the present step began; None between steps

    def serve(self, model: Model, ledger: Ledger) -> None:
        """Requests are accepted from now on."""
        self._life.ledger = ledger
        self.queue.open(model.context, ledger.num_blocks * ledger.block_tokens)
        self.model = model  # last: with it the server says that it is ready

    # --- from any thread: state -------------------------------------------------------------

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
    def recovers(self) -> bool:
        """Whether the model is lost and may return."""
        lost = self.model is not None and self.model.lost is not None
        return lost and not self.queue.draining and self._failures.verdict is None

    @property
    def policy(self) -> Policy:
        """The present one: the first deferred request may replace it."""
        return self._life.policy

    @property
    def memory(self) -> Ledger:
        """The ledger; it has no blocks until there is a model."""
        return self._life.ledger

    @property
    def counts(self) -> dict[str, int]:
        return {"waiting": self.queue.size, "running": len(self._life.resident)}

    def described_load(self) -> str:
        """For routers: waiting=3 running=16 free_blocks=120; without blocks until it is loaded."""
        counts = self.counts
        if self.model is not None:
            counts["free_blocks"] = self.memory.num_blocks - self.memory.used
        return " ".join(f"{name}={count}" for name, count in counts.items())

    @property
    def pending(self) -> int:
        """Waiting requests that are not in the queue yet."""
        return len(self.queue.pending)

    @property
    def serves_immediate(self) -> bool:
        """Whether a connection waits for a queued or running request; nearly up to date."""
        return self.queue.size + len(self._life.resident) > self._life.num_deferred

    @property
    def busy_since_s(self) -> float | None:
        """When the present busy period began; None while there is no request."""
        return self.queue.busy_since_s

    # --- from any thread: requests ----------------------------------------------------------

    def enqueue(self, inference: Inference) -> None:
        """Puts a request into the queue. Raises what `RequestQueue.put` raises."""
        if not inference.stored:
            inference.due_s = inference.arrival_s + self._life.request_timeout_s
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
        if self._life.request_timeout_s < math.inf:
            self._life.give_up(now_s)

    # --- from any thread: the end -----------------------------------------------------------

    def give_up(self, verdict: str, now_s: float) -> None:
        """The loop hangs, so the process must end: answers all clients."""
        self._failures.verdict = verdict
        self.queue.drain()
        self._life.give_up(now_s, f"the server has failed: {verdict}")

    def wake(self) -> None:
        """The lost model is back."""
        self.queue.wake()

    def drain(self) -> None:
        """Accepts no more requests; the loop returns when the accepted ones have ended."""
        self.queue.drain()

    def abort(self, reason: str) -> None:
        """Fails all unfinished requests, with a message to their clients."""
        self.queue.abort(reason)

    # --- a step of the loop -----------------------------------------------------------------

    @property
    def drained(self) -> bool:
        """Whether no more requests are accepted, and all accepted ones have ended."""
        return not (self._life.resident or self.in_flight) and self.queue.is_over()

    def step(self, lay_out: LayOut, clock: Clock) -> Wait | None:
        """Begins an iteration, and finishes the oldest if no more may be in flight. Returns what to
        wait for; None if the next step may follow at once. Raises EngineFailedError."""
        self.step_since_s = clock()
        wait = None
        try:
            begun = self.begin(self.step_since_s, lay_out)
            if isinstance(begun, Wait) and not self.in_flight:
                wait = begun
            elif isinstance(begun, Wait) or len(self.in_flight) > self.lookahead:
                outcome = self.in_flight[0].outcome()
                self.finish(clock(), outcome)
        except Exception as error:  # the loop must survive it
            self._failures.loop_failed(error, clock())
        if (verdict := self._failures.verdict) is not None:
            self.queue.abort(f"the server has failed: {verdict}")
            self._life.take_in(clock())  # fails waiting requests and new arrivals
            raise EngineFailedError(verdict)
        self.step_since_s = None
        return wait

    def sleep(self, wait: Wait, clock: Clock) -> None:
        """Waits, but not longer than until the queue or the model changes."""
        if not self.drained:
            self.queue.sleep(wait.until_s - clock())

    # --- begin ------------------------------------------------------------------------------

    def begin(self, now_s: float, lay_out: LayOut) -> Iteration | Wait:
        """Plans an iteration and starts it, or says why none can start now."""
        assert self.model is not None
        life = self._life
        now_s = life.take_in(now_s)
        alone = self._failures.alone() if self._failures.suspects else None
        if not (self.queue.waiting or life.resident):
            return Wait()  # there are no requests
        if self.in_flight and (
            alone is not None
            or any(iteration.failed for iteration in self.in_flight)
            or all(inference.done for inference in life.resident.values())
        ):
            return Wait()  # what is in flight has to end first
        if self.model.lost is not None:
            return Wait(life.next_due_s)
        plan = self._plan(now_s, alone)
        return plan if isinstance(plan, Wait) else self._start(plan, now_s, lay_out)

    def _plan(self, now_s: float, alone: Inference | None) -> Plan | Wait:
        """Asks the policy, checks what it answers, and preempts what the plan preempts. `alone`:
        the request that must run alone, if there is one."""
        life = self._life
        waiting: Sequence[Inference] = self.queue.waiting
        resident = list(life.resident.values())
        if alone is not None:
            for other in resident:
                if other is not alone:
                    life.preempt(other, now_s)
            waiting, resident = ([], [alone]) if alone.resident else ([alone], [])
        limit = self._failures.batch_limit
        view = View(
            now_s,
            waiting,
            resident,
            limit,
            life.ledger,
            life.num_deferred,
            self.max_resident,
            life.prefill_tokens,
        )
        plan = life.policy.plan(view)
        check_plan(plan, view, self.max_batch_size)
        if life.ledger.growth_tokens is not None:
            plan = with_growth(plan, view)
        if waiting:
            plan = life.without_siblings(plan)
        if any(life.is_in_flight(life.resident[request.id]) for request in plan.preempt):
            return Wait()  # their blocks are being written
        if self.in_flight:  # the last tokens of some requests, or tokens that others wait for
            steps = cast(Sequence[tuple[Inference, int]], plan.advance)
            may = [step for step in steps if not (step[0].done or step[0].must_wait)]
            plan = replace(plan, advance=cast(Sequence[Advance], may))
        for request in plan.preempt:
            life.preempt(life.resident[request.id], now_s)
        if plan.advance:
            return plan
        # without a time to wake at, all requests to advance are done or were preempted
        return Wait(now_s if plan.wake_s is None else min(plan.wake_s, life.next_due_s))

    def _start(self, plan: Plan, now_s: float, lay_out: LayOut) -> Iteration | Wait:
        """Admits the newcomers of the plan, assigns blocks, and gives the model its steps."""
        assert self.model is not None
        life, memory, advance = self._life, self._life.ledger, plan.advance
        new = [cast(Inference, step.request) for step in advance if not step.request.resident]
        error: Exception | None = None
        if new:
            error = self._admit(new, now_s)
            if not all(inference.resident for inference in new):
                new = [inference for inference in new if inference.resident]
                advance = [step for step in advance if step.request.resident]
                if not advance:
                    return Wait(now_s)
            if any(inference.computed for inference in new):  # prefix hits leave less to compute
                advance = [Advance(r, min(n, r.known - r.computed)) for r, n in advance]
        new_blocks = memory.grow(advance)
        rows = cast(Sequence[tuple[Inference, int]], advance)
        hold = cast(Sequence[Inference], plan.hold)
        used, cached, free = memory.state()
        preempted, released = life.take_gone()
        record = IterationRecord(
            len(rows) + len(hold),
            with_deferred=life.num_deferred > 0,
            num_waiting=len(self.queue.waiting),
            used_blocks=used,
            cached_blocks=cached,
            free_blocks=free,
            preempted=preempted,
        )
        drafts = {} if self.speculation is None else self._drafts(self.speculation, rows)
        paused: Sequence[tuple[int, int]] = ()
        if len(life.resident) > record.batch_size:
            planned = {inference.id for inference in (*[row for row, _ in rows], *hold)}
            others = [i for i in life.resident.values() if i.id not in planned and not i.done]
            paused = [(inference.id, inference.slot) for inference in others]
        life.started += 1
        batch, steps = enter(rows, hold, life.started, new_blocks, drafts)
        pending: Pending | Exception
        try:  # what fails from here on is taken back with its iteration
            if error is not None:
                raise error
            steps = list(lay_out(steps))
            pending = self.model.start(steps, released)
        except Exception as raised:
            pending = raised
        admitted = {inference.id for inference in new}
        iteration = Iteration(now_s, record, batch, steps, admitted, paused, pending)
        self.in_flight.append(iteration)
        return iteration

    def _drafts(
        self, speculation: Speculation, rows: Sequence[tuple[Inference, int]]
    ) -> Mapping[int, int]:
        """The drafts of each request. They take the places that the batch limit leaves, and none
        while there are deferred requests, which are given these places."""
        life = self._life
        if life.num_deferred:
            return {}
        most = max(self._failures.batch_limit, 1 + speculation.most) - len(rows)
        return speculation.plan(rows, most, life.ledger)

    def _admit(self, new: Sequence[Inference], now_s: float) -> Exception | None:
        """Assigns blocks to requests and opens them on the model. Those that it refuses fail. An
        error that is not theirs is returned: the iteration fails with it, in its turn."""
        assert self.model is not None
        self._life.admit(new, now_s)
        try:
            self.model.open([inference.opening() for inference in new])
        except OpeningError as error:
            for inference in new:
                if (reason := error.reasons.get(inference.id)) is not None:
                    self._life.fail([inference], f"the model refuses the request: {reason}", now_s)
        except Exception as error:
            return error
        return None

    # --- finish -----------------------------------------------------------------------------

    def finish(self, now_s: float, outcome: Outcome | Exception) -> None:
        """Delivers the results of the oldest iteration in flight, stamped with the present time."""
        iteration, life, memory = self.in_flight.popleft(), self._life, self._life.ledger
        start_s, self._last_end_s = max(iteration.start_s, self._last_end_s), now_s
        life.ended += 1
        if iteration.discarded or isinstance(outcome, Exception):
            self._failures.failed(iteration, outcome, now_s)
            return
        outcome = iteration.until_ends(outcome)
        sharing, own = memory.prefix_caching, life.policy.answers == "own"
        # before the responses, so that statistics include their tokens
        record = iteration.complete(outcome, start_s, now_s)
        for recorder in self.recorders:
            life.notify(recorder.iteration, record)
        self.history.add(record)
        if outcome.logprobs or outcome.prompt_logprobs:
            iteration.add_logprobs(outcome)
        rows = zip(iteration.batch, iteration.steps, outcome.tokens, strict=True)
        for i, (inference, step, tokens) in enumerate(rows):
            if inference.end is not None:
                inference.known -= step.draw  # what it drew is dropped
                continue
            if inference.must_wait:
                inference.must_wait = life.is_in_flight(inference)
            if inference.first_token_s is None:
                life.prefill_tokens += step.num_tokens
            drafts = outcome.drafts.get(i, NO_DRAFTS) if outcome.drafts else NO_DRAFTS
            if tokens:
                inference.receive(tokens, now_s, drafts)
            elif step.draw:
                inference.known -= 1  # it fails below
            if drafts is not NO_DRAFTS and self.speculation is not None:
                self.speculation.learn(inference, drafts)
            if sharing or (inference.group and memory.shares(inference)):
                memory.share(inference, step.start + step.num_tokens + drafts.accepted)
            if tokens:
                if inference.end is not None and own:
                    life.answer(inference, now_s)
                elif inference.streaming:
                    inference.updated.set()
        if life.observer is not None:
            life.observer.observe(ServedRows(iteration, outcome, now_s))
        for i, reason in outcome.failed.items():
            iteration.batch[i].cause = "constraint"
            life.fail([iteration.batch[i]], f"the request's constraint failed: {reason}", now_s)
        life.retire(now_s)
        if self._failures.recovering:
            self._failures.succeeded(now_s)


# --- the three modes ------------------------------------------------------------------------


def no_batching_loop(manager: BatchingManager, clock: Clock) -> None:
    """One request at a time, in one row."""
    while not manager.drained:
        wait = manager.step(MODES["nobatch"].lay_out, clock)
        if wait is not None:
            manager.sleep(wait, clock)


def static_batching_loop(manager: BatchingManager, clock: Clock) -> None:
    """A batch forms, runs until its longest request ends, and leaves together: a rectangle."""
    while not manager.drained:
        wait = manager.step(MODES["static"].lay_out, clock)
        if wait is not None:
            manager.sleep(wait, clock)


def dynamic_batching_loop(manager: BatchingManager, clock: Clock) -> None:
    """Requests join and leave at every iteration: a ragged pack."""
    while not manager.drained:
        wait = manager.step(MODES["dynamic"].lay_out, clock)
        if wait is not None:
            manager.sleep(wait, clock)


LOOPS: dict[ModeName, Callable[[BatchingManager, Clock], None]] = {
    "nobatch": no_batching_loop,
    "static": static_batching_loop,
    "dynamic": dynamic_batching_loop,
}
