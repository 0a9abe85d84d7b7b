"""Deferred requests in the gaps of immediate ones: `budget`, a wrapper around any dynamic policy.

Every iteration first takes what the wrapped policy plans for the immediate requests (`gap.py`).
Then deferred rows join, decodes and pieces of prompts, while the predicted time of the iteration
stays within the budget. A row that does not join is paused and keeps its memory. That admission
alone is not enough, since a resident row then decodes in every iteration, is the lesson of the open
engine Tidal; filling every iteration up to a latency budget is HyGen's (arXiv 2501.14808) and
ConServe's (arXiv 2410.01228); prompts in pieces are Sarathi-Serve's (OSDI '24).

The budget, where immediate requests are in the iteration: `factor` x the time it would take with
1/`factor` of their work. Requests that take `factor` times as long are together for as much longer,
so that as many more of them share an iteration (Little's law); what they would be without deferred
ones is the smaller iteration. What an iteration leaves of its budget, since rows are whole, the
next may add, up to `factor` x the time of its own immediate work, or up to a row beyond its budget:
under a small factor none would ever fit. Where places or memory would not hold `factor` times as
many, the factor is what they hold. Where no immediate request is in the iteration: `(factor - 1) /
factor` of the TTFT of late, so that the wait for the iteration under way stays within the same
factor; at least `factor` x a single row, since less is nothing; at most `max_step_s`, which is all
that counts once none was seen for `QUIET_S`.

Order: who has less than twice the time that is needed at the present pace, least laxity first; then
by deadline, residents before those who wait: what was begun is finished, and nobody is admitted to
be paused. Who names no deadline has one after a day. A floor against starvation: if no deferred row
found room for `FLOOR_ITERATIONS` iterations, the first of them does, once, whatever it takes.
Places and memory have no floor: a queue that always holds immediate requests leaves none."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduling.classes.gap import Gap
from scheduling.classes.predictor import StepTime
from scheduling.classes.simple import Wrapper
from scheduling.classes.step_time import Work
from seams import Advance, Plan, Policy, Request, View

DAY_S = 86_400.0  # the deadline of a request that names none
QUIET_S = 30.0  # without immediate requests, after which the next one may wait for `max_step_s`
FLOOR_ITERATIONS = 100
FLOOR_TOKENS = 16  # of a prompt that the floor computes
BLIND_TOKENS, BLIND_TOKENS_ALONE = 4, 64  # deferred ones, until there are predictions
CROWD_DECAY = 0.995  # of an iteration: places of immediate requests stay free for their like
SMALLEST = Work(1, 1, 1, 1, 1, deferred=True)  # that a decode takes
MISSES = 3  # rows that find no room, after which the iteration counts as full


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an iteration may take: on average, how much more where earlier ones took less, and in
    tokens."""

    budget_s: float
    spare_s: float
    tokens: float


class Budget(Wrapper):
    """`factor`: how much longer immediate requests may take for deferred ones' sake. `max_step_s`:
    the longest iteration of deferred requests alone, unless a single row takes longer. `target_s`:
    time between tokens of immediate requests that is used instead of the factor."""

    def __init__(
        self,
        inner: Policy,
        predictor: StepTime,
        factor: float = 1.15,
        max_step_s: float = 0.1,
        target_s: float | None = None,
    ) -> None:
        super().__init__(inner)
        self.predictor = predictor
        self.factor = factor
        self.max_step_s = max_step_s
        self.target_s = target_s
        self._pace_s = 0.0  # of the newest iteration: in which a row gets a token
        self._crowd = self._crowd_blocks = 0.0  # places and memory of immediates, at most, lately
        self._immediate_s = -math.inf  # when one was last seen
        self._quiet = True
        self._saved_s = 0.0  # of earlier budgets, where immediate requests were there
        self._newest = -1  # of those who wait, when they were last looked at
        self._calm_s = -math.inf  # before this time, at this pace, none of them is short of time
        self._calm_pace_s = 0.0
        self._starved = 0  # iterations since a deferred row took part

    def plan(self, view: View) -> Plan:
        if not view.deferred:  # who comes next may be, and is to know what was before
            self._remember(view.now_s, len(view.resident), view.memory.used)
        return super().plan(view)

    def _remember(self, immediate_s: float, crowd: int, crowd_blocks: int) -> None:
        self._immediate_s = immediate_s
        self._crowd = max(crowd, self._crowd * CROWD_DECAY)
        self._crowd_blocks = max(crowd_blocks, self._crowd_blocks * CROWD_DECAY)

    def mixed(self, view: View) -> Plan:
        gap = Gap(self.inner, view)
        present = bool(gap.resident or gap.waiting)
        immediate_s = view.now_s if present else self._immediate_s
        self._remember(immediate_s, gap.crowd, gap.crowd_blocks)
        self._quiet = view.now_s - self._immediate_s > QUIET_S
        work = immediate = Work.of(gap.plan.advance)
        longest = max((request.computed + 1 for request in gap.paused), default=1)
        allowance = self.allowance(immediate, self._stretch(gap), longest)
        steps = self._joining(gap, immediate, allowance)
        self._starved = 0 if steps else self._starved + 1
        if not steps and (self._starved >= FLOOR_ITERATIONS or not gap.plan.advance):
            steps = self._floor(gap)
        for step in steps:
            work = work.plus(step)
        self._pace_s = self.predictor.seconds(work) or 0.0
        if immediate.tokens:
            left_s = self._saved_s + allowance.budget_s - self._pace_s
            self._saved_s = min(max(0.0, left_s), allowance.spare_s)
        advance = [*gap.plan.advance, *steps]
        return Plan(advance, [*gap.plan.preempt, *gap.dropped], wake_s=gap.plan.wake_s)

    def _stretch(self, gap: Gap) -> float:
        """The factor, as far as there are places and memory for so many more immediate requests."""
        places = gap.view.max_batch_size / max(1, gap.crowd)
        return max(1.0, min(self.factor, places, gap.memory.budget / max(1, gap.crowd_blocks)))

    def allowance(self, work: Work, factor: float, context: int) -> Allowance:
        """Of an iteration with this immediate work, that may take `factor` times as long.
        `context`: tokens, of the longest row that may join."""
        predictor, reach = self.predictor, self.predictor.reach_tokens
        blind = work.tokens + (BLIND_TOKENS if work.tokens else BLIND_TOKENS_ALONE)
        alone_s = predictor.seconds(work.scaled(1 / factor))
        if alone_s is None:
            return Allowance(math.inf, 0.0, blind)
        trusted = 1.0 + predictor.margin  # not of a factor: what slows one side slows the other
        if work.tokens:
            if self.target_s is not None:
                return Allowance(self.target_s / trusted, 0.0, max(reach, blind))
            row = Work(1, 1, 1, context, context, deferred=True)
            work_s, with_row_s = (predictor.seconds(w) or 0.0 for w in (work, work.beside(row)))
            spare_s = max(factor * (work_s - alone_s), with_row_s - work_s)
            return Allowance(factor * alone_s, spare_s, max(reach, blind))
        wait_s = self.max_step_s
        if (ttft_s := predictor.ttft_s) is not None and not self._quiet:
            wait_s = min(wait_s, ttft_s * (factor - 1) / factor)
        single_s = predictor.seconds(SMALLEST) or 0.0
        wait_s = max(wait_s / trusted, factor * single_s)
        return Allowance(wait_s, 0.0, max(reach, blind))

    def _first(self, gap: Gap) -> list[Request]:
        """Who has less than twice the time it needs, by laxity; then residents, by deadline."""
        now_s, pace_s = gap.view.now_s, self._pace_s

        def rank(request: Request) -> tuple[bool, float, int]:
            needs_s = (request.max_tokens - request.generated) * pace_s
            left_s = _due_s(request) - now_s
            short = left_s < 2 * needs_s
            return not short, left_s - needs_s if short else left_s, request.id

        ranked = [(rank(request), request) for request in gap.paused]
        if gap.places > 0 and self._may_be_short(gap):
            waiting = ((rank(request), request) for request in gap.queue)
            ranked += heapq.nsmallest(gap.places, (one for one in waiting if not one[0][0]))
        return [request for _, request in sorted(ranked)]

    def _may_be_short(self, gap: Gap) -> bool:
        """Whether someone who waits may be short of time. The queue may be long and iterations are
        short, so that all of it is looked at once a second, or when somebody came."""
        newest, now_s = gap.queue[-1].id if gap.queue else -1, gap.view.now_s
        if newest != self._newest or now_s >= self._calm_s or self._pace_s > self._calm_pace_s:
            self._newest, self._calm_pace_s = newest, 2 * self._pace_s
            short_s = (_due_s(r) - 2 * r.max_tokens * self._calm_pace_s for r in gap.queue)
            self._calm_s = min(now_s + 1.0, min(short_s, default=math.inf))
        return now_s >= self._calm_s

    def _newcomers(self, gap: Gap, besides: Sequence[Request]) -> list[Request]:
        """Of those who wait, as many as there are places, by deadline."""
        if gap.places <= 0:
            return []
        chosen = {request.id for request in besides}
        return heapq.nsmallest(
            gap.places, (r for r in gap.queue if r.id not in chosen), lambda r: (_due_s(r), r.id)
        )

    def _joining(self, gap: Gap, work: Work, allowance: Allowance) -> list[Advance]:
        seconds, steps = self.predictor.seconds, list[Advance]()
        most_s = allowance.budget_s + min(self._saved_s, allowance.spare_s)
        if (seconds(work.beside(SMALLEST)) or 0.0) > most_s:
            return []
        misses, closed = 0, False

        def candidates() -> Iterator[Request]:
            first = self._first(gap)
            yield from first
            if not (misses or closed):  # most iterations are full by now
                yield from self._newcomers(gap, first)

        def fits(step: Advance) -> bool:
            more = work.plus(step)
            return more.tokens <= allowance.tokens and (seconds(more) or 0.0) <= most_s

        for request in candidates():
            most = request.known - request.computed
            if not request.resident and (misses or closed or not self._may_come(request, gap)):
                closed = True  # whoever is smaller does not overtake it
                continue
            if request.resident and not gap.fits(Advance(request, most)):
                most = 0  # it needs another block for its next token, and there is none
            tokens = most
            if most and not fits(Advance(request, most)):
                sizes = range(1, most)
                tokens = bisect_left(sizes, True, key=lambda n: not fits(Advance(request, n)))
            if tokens:
                step = Advance(request, tokens)
                work = work.plus(step)
                gap.take(step)
                steps.append(step)
            if not tokens:  # what was saved is for this one: those behind it may cost less for ever
                most_s = min(most_s, allowance.budget_s)
            if tokens < most:
                misses += 1
                if misses == MISSES:
                    break
        return steps

    def _may_come(self, request: Request, gap: Gap) -> bool:
        """Whether it fits, beside those that immediate requests are likely to need soon."""
        if not gap.fits(Advance(request, 1)):
            return False
        deferred = len(gap.paused) + gap.admitted
        return not deferred or (
            self._crowd + deferred + 1 <= gap.view.max_batch_size
            and self._crowd_blocks + gap.held_beside(request) <= gap.memory.budget
        )

    def _floor(self, gap: Gap) -> list[Advance]:
        first = self._first(gap)
        for request in (*first, *self._newcomers(gap, first)):
            step = Advance(request, min(request.known - request.computed, FLOOR_TOKENS))
            if gap.fits(step):
                self._starved = 0
                return [step]
        return []


def _due_s(request: Request) -> float:
    within_s = DAY_S if request.deadline_s is None else request.deadline_s
    return request.arrival_s + within_s
