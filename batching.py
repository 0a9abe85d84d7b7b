"""The heart: requests wait in one queue, and one background thread decides, iteration by
iteration, which of them the model advances.

Read it with the Orca paper (Yu et al., OSDI '22) beside it. A request is an `Inference`. An
iteration begins with a plan that is started on the model (`BatchingManager.begin`), and finishes
when its tokens are delivered (`finish`). The three loops at the end are the three modes: the same
iteration, each with its policy (`scheduling/`) and its layout (`generate/`). This module knows
nothing of HTTP, text or torch. `drive` alone waits, on a clock that it is given.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, cast

from failures import Failures
from flight import Flight, NeverStarted, Wait
from generate import dynamic, nobatch, static
from generate.rectangle import RectangleLedger
from inference import DrainingError, Inference, TooLongError
from lifecycle import Lifecycle
from memory import BaseLedger, Ledger
from queueing import RequestQueue
from records import History, iterated, iteration_record, planned_work
from scheduling.contract import check_plan
from scheduling.growth import with_growth
from seams import (
    End,
    Model,
    Opening,
    Outcome,
    Pending,
    Plan,
    Policy,
    Recorder,
    Step,
    View,
)

Mode = Literal["nobatch", "static", "dynamic"]
LayOut = Callable[[Sequence[Step]], Sequence[Step]]  # the layout of a mode

GROWTH_TOKENS = 64  # of optimistic admission: what is free beside a newcomer, so that it goes on


class EngineFailedError(Exception):
    """The loop has ended since nothing can be advanced any more; all requests were failed."""


class BatchingManager:
    """The queue, and the life of a request in it: submitted, admitted, advanced, ended.

    `submit`, `submit_stored`, `cancel`, `drain` and `abort` may be called from any thread; all else
    belongs to the thread that calls `begin` and `finish`.
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
        self.max_waiting = max_waiting
        self.lookahead = lookahead
        self.model: Model | None = None  # until it is loaded
        self._queue = RequestQueue(max_waiting, max_waiting_prompt_tokens)
        self.history = History(max_batch_size)
        self._life = Lifecycle(self._queue, policy, recorder, self.history, request_timeout_s)
        self._flights: deque[Flight] = deque()
        self._failures = Failures(self._life, self._flights, max_batch_size)
        self._last_end_s = -math.inf

    @property
    def flights(self) -> Sequence[Flight]:
        """Iterations in flight, the oldest first."""
        return self._flights

    def serve(self, model: Model, ledger: BaseLedger) -> None:
        """Requests are taken in from now on."""
        self._life.ledger = ledger
        self.model = model

    # --- from any thread --------------------------------------------------------------------

    @property
    def unavailable(self) -> str | None:
        """Why nothing is taken in; None while requests are."""
        if self._failures.verdict is not None:
            return f"the server has failed: {self._failures.verdict}"
        if self.model is None:
            return "the model is still being loaded"
        if (lost := self.model.lost) is not None:
            return f"the model is lost: {lost}"
        return "the server is shutting down" if self._queue.draining else None

    @property
    def ready(self) -> bool:
        return self.unavailable is None

    @property
    def memory(self) -> BaseLedger:
        """The ledger; there is one as soon as there is a model."""
        assert self._life.ledger is not None
        return self._life.ledger

    @property
    def failed_iterations(self) -> Counter[str]:
        """By what they computed: decodes only, or prefill, also in part."""
        return self._failures.iterations

    @property
    def counts(self) -> dict[str, int]:
        return {"waiting": self._queue.size, "running": len(self._life.resident)}

    @property
    def serves_immediate(self) -> bool:
        """Whether somebody waits on a connection for what is queued or runs; as good as now."""
        return self._queue.size + len(self._life.resident) > self._life.deferred

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
        if total > self.memory.budget * self.memory.block_tokens:
            raise TooLongError(
                f"the request takes {total} tokens of KV memory, the server has "
                f"{self.memory.budget * self.memory.block_tokens}"
            )
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

    def wake(self) -> None:
        """A model that was lost is back."""
        self._queue.wake()

    def drain(self) -> None:
        """Takes in nothing more; `drive` returns when all that was accepted has ended."""
        self._queue.drain()

    def abort(self, reason: str) -> None:
        """Fails whatever has not ended, with a message to its client."""
        self._queue.abort(reason)

    # --- the thread of the loop -------------------------------------------------------------

    def drive(self, lay_out: LayOut, clock: Callable[[], float]) -> None:
        """Iteration after iteration while there is work; sleeps on the mailbox while there is none.
        Raises EngineFailedError."""
        while True:
            try:
                begun = self.begin(clock(), lay_out)
                while self._flights and (
                    isinstance(begun, Wait) or len(self._flights) > self.lookahead
                ):
                    outcome = self._flights[0].land()
                    self.finish(clock(), outcome)
                    if isinstance(begun, Wait):
                        begun = Wait(-math.inf)  # what was just delivered may be planned
            except Exception as error:  # the loop must survive it
                self._failures.of_the_loop(error, clock())
                begun = Wait(math.inf)
            if (verdict := self._failures.verdict) is not None:
                self._queue.abort(f"the server has failed: {verdict}")
                self._life.take_in(clock())  # fails those that wait, and those that just came
                raise EngineFailedError(verdict)
            if isinstance(begun, Wait):
                if not self._life.resident and self._queue.is_over():
                    return
                self._queue.sleep(begun.until_s - clock())

    def step(self, lay_out: LayOut, clock: Callable[[], float]) -> Wait | None:
        """One iteration from its plan to its answers; None where one was executed."""
        begun = self.begin(clock(), lay_out)
        if isinstance(begun, Wait):
            return begun
        landed = begun.land()
        self.finish(clock(), landed)
        return None

    def begin(self, now_s: float, lay_out: LayOut) -> Flight | Wait:
        """Plans an iteration and starts it. One that waits may wait for what is in flight, or for
        a model that is lost."""
        assert self.model is not None
        life = self._life
        life.take_in(now_s)
        if not (self._queue.waiting or life.resident):
            return Wait(math.inf)
        if self._flights and not self._may_look_ahead():
            return Wait(math.inf)
        if self.model.lost is not None:
            return Wait(math.inf if self._flights else life.next_due_s)
        waiting, resident = self._queue.waiting, list(life.resident.values())
        if (alone := self._failures.alone()) is not None:
            if self._flights:
                return Wait(math.inf)
            for other in resident:
                if other is not alone:
                    life.preempt(other, now_s)
            waiting, resident = ([], [alone]) if alone.resident else ([alone], [])
        limit = self._failures.batch_limit
        view = View(now_s, waiting, resident, limit, self.memory, life.deferred)
        plan = self.policy.plan(view)
        check_plan(plan, view)
        if self.memory.growth_tokens is not None:
            plan = with_growth(plan, view)
        if self._flights:
            if any(life.resident[request.id].flights for request in plan.preempt):
                return Wait(math.inf)  # their blocks are being written: deliver first
            advance = [step for step in plan.advance if not step.request.done]
            plan = replace(plan, advance=advance)
        for request in plan.preempt:
            life.preempt(life.resident[request.id], now_s)
        if not plan.advance:
            if plan.wake_s is None:  # all that were to advance are done, or gave up their places
                return Wait(now_s)
            return Wait(min(plan.wake_s, life.next_due_s))
        return self._start(plan, now_s, lay_out)

    def _may_look_ahead(self) -> bool:
        """Not past an iteration of which nothing will come, nor where nobody is left to advance."""
        if any(flight.hopeless for flight in self._flights):
            return False
        return not all(inference.done for inference in self._life.resident.values())

    def _start(self, plan: Plan, now_s: float, lay_out: LayOut) -> Flight:
        assert self.model is not None
        new = [cast(Inference, s.request) for s in plan.advance if not s.request.resident]
        openings = self._admit(new, now_s)
        advance = plan.advance
        if any(inference.computed for inference in new):  # prefix hits leave less to compute
            advance = [
                step._replace(tokens=min(step.tokens, step.request.known - step.request.computed))
                for step in advance
            ]
        if self.memory.growth_tokens is not None:
            self.memory.grow(advance)
        rows = cast(Sequence[tuple[Inference, int]], advance)
        held = cast(Sequence[Inference], plan.hold)
        life, waiting = self._life, len(self._queue.waiting)
        work = planned_work(rows, held, life.resident, new, waiting, life.deferred, self.memory)
        news = self.memory.news()
        batch: list[Inference] = []
        steps: list[Step] = []
        for inference, tokens in rows:
            start = inference.computed
            draw = start + tokens == inference.known and inference.end is None
            blocks = news.get(inference.id, ())
            # half the time of Step(...): 0.3 us less for each row
            steps.append(Step._make((inference.id, start, tokens, draw, blocks, 0)))
            batch.append(inference)
            inference.computed = start + tokens
            inference.expected += draw
            inference.flights += 1
        for inference in held:
            steps.append(Step(inference.id, inference.computed, 0, False, ()))
            batch.append(inference)
            inference.flights += 1
        steps = list(lay_out(steps))
        # one that was preempted and admitted again is opened anew, which replaces what there was
        released = [id for id in self._life.released if id not in self._life.resident]
        self._life.released = []
        pending: Pending
        try:
            if openings:
                self.model.open(openings)
            pending = self.model.start(steps, released)
        except Exception as error:
            pending = NeverStarted(error)
        flight = Flight(now_s, work, batch, steps, pending)
        self._flights.append(flight)
        return flight

    def _admit(self, new: Sequence[Inference], now_s: float) -> list[Opening]:
        if not new:
            return []
        hits = self.memory.open(new)
        openings = []
        for inference in new:
            self._life.admit(inference, hits.get(inference.id, 0), now_s)
            openings.append(
                Opening(
                    inference.id,
                    list(inference.ids),
                    inference.prompt_tokens,
                    inference.sampling,
                    len(inference.prompt_logprobs),
                    inference.trace,
                )
            )
        self._queue.admitted({inference.id for inference in new})
        return openings

    def finish(self, now_s: float, landed: Outcome | Exception) -> None:
        """Delivers what came of the oldest iteration in flight, at the time at which it came."""
        flight = self._flights.popleft()
        for inference in flight.batch:
            inference.flights -= 1
        if flight.discarded:
            self._failures.replan(flight, now_s)
        elif isinstance(landed, Exception):
            self._failures.failed(flight, landed, now_s)
        else:
            self._deliver(flight, landed, now_s)
        self._last_end_s = now_s

    def _deliver(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        start_s = max(flight.start_s, self._last_end_s)
        # before the answers, so that statistics hold their tokens
        record = iteration_record(flight.work, flight.batch, outcome, start_s, now_s)
        self._life.record(self.recorder.iteration, record)
        self.history.add(iterated(flight.work, record, self._life.preempted))
        self._life.preempted.clear()
        if self.memory.prefix_caching:
            for inference, step in zip(flight.batch, flight.steps, strict=True):
                if inference.end is None:
                    self.memory.share(inference, step.start + step.tokens)
        for i, (first, scores) in outcome.prompt_logprobs.items():
            # after a preemption some are computed again, and known already
            known = flight.batch[i].prompt_logprobs
            known += scores[len(known) + 1 - first :]
        for i, scores in outcome.logprobs.items():
            if flight.batch[i].end is None:
                flight.batch[i].logprobs += scores
        answers = self.policy.answers
        for inference, step, tokens in zip(flight.batch, flight.steps, outcome.tokens, strict=True):
            if step.draw:
                inference.expected -= 1
                if inference.end is None:
                    self._append(inference, tokens, now_s, answers)
        self._life.retire(now_s)
        self._failures.succeeded(now_s)

    def _append(
        self, inference: Inference, tokens: Sequence[int], now_s: float, answers: str
    ) -> None:
        for token in tokens:
            inference.ids.append(token)
            inference.last_token_s = now_s
            if inference.first_token_s is None:
                inference.first_token_s = now_s
            if token in inference.end_ids:
                inference.end = "stop"
            elif len(inference.ids) == inference.prompt_tokens + inference.max_tokens:
                inference.end = "length"
            if inference.end is not None:
                break
        if inference.end is not None and answers == "own":
            self._life.answer(inference, now_s)
        elif inference.streaming:
            inference.news.set()


def make_ledger(
    mode: Mode, model: Model, growth_tokens: int | None = None, *, prefix_caching: bool = False
) -> BaseLedger:
    """The books of a model's KV memory as the mode takes it. `growth_tokens`: see memory.Ledger.
    A rectangle neither grows nor shares."""
    if mode != "dynamic":
        return RectangleLedger(model.blocks, model.block_tokens)
    return Ledger(
        model.blocks,
        model.block_tokens,
        growth_tokens=growth_tokens,
        prefix_caching=prefix_caching,
    )


# --- the three modes ------------------------------------------------------------------------


def no_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """One request at a time, in one row."""
    manager.drive(nobatch.lay_out, clock)


def static_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """A batch that forms, runs to its longest request's end, and leaves as one: a rectangle."""
    manager.drive(static.lay_out, clock)


def dynamic_batching_loop(manager: BatchingManager, clock: Callable[[], float]) -> None:
    """Requests join and leave at every iteration: a ragged pack."""
    manager.drive(dynamic.lay_out, clock)


LAYOUTS: dict[Mode, LayOut] = {
    "nobatch": nobatch.lay_out,
    "static": static.lay_out,
    "dynamic": dynamic.lay_out,
}
LOOPS: dict[Mode, Callable[[BatchingManager, Callable[[], float]], None]] = {
    "nobatch": no_batching_loop,
    "static": static_batching_loop,
    "dynamic": dynamic_batching_loop,
}
