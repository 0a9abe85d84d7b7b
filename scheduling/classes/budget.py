"""Deferred requests in what immediate ones leave: `budget`, a wrapper around any dynamic policy.

Every iteration first does what the wrapped policy plans for the immediate requests (`spare.py`).
Then deferred rows join, decodes and chunks of prompts, while the predicted duration of the
iteration stays within the budget, planning included. A row that does not join is paused and keeps
its memory. Limiting admission alone is not enough, since a resident row then decodes every time
(the open engine Tidal); filling every iteration up to a latency budget follows HyGen (arXiv
2501.14808) and ConServe (arXiv 2410.01228); prompts in chunks follow Sarathi-Serve (OSDI '24).

The budget of an iteration with immediate requests is `factor` x its duration with 1/`factor` of
their work: requests that take `factor` times as long overlap for that much longer, so that more of
them share an iteration (Little's law), and without deferred requests the iteration would be the
smaller one. Since only whole rows join, the unused rest passes to the next iteration, which may
then take up to `factor` x the duration of its own immediate work, or one row more than its budget,
as under a small factor no row would ever fit. If batch slots or memory do not suffice for `factor`
times as many requests, the factor is what they suffice for. Without immediate requests the budget
is `(factor - 1) / factor` of the recent TTFT, so that the wait for the current iteration stays
within the same factor; at least `factor` x a single row, and at most `max_step_s`, which alone
counts after `QUIET_S` without immediate requests.

Order: first requests with less than twice the time they need at the present pace, by laxity; then
by deadline, residents before waiting requests, so that started work is finished and no request is
admitted only to be paused. Requests without a deadline have one after a day. A minimum prevents
starvation: if no deferred row fitted for `FLOOR_ITERATIONS` iterations, the first of them runs once
at any cost. There is no minimum for batch slots and memory: a queue that always holds immediate
requests leaves none."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.classes.simple import Wrapper
from scheduling.classes.spare import SpareCapacity
from scheduling.prediction.predictor import Load, Predictor
from scheduling.prediction.step_time import Work
from seams import Advance, Plan, Policy, Request, Served, View

DAY_S = 86_400.0  # the deadline of a request without one
QUIET_S = 30.0  # without immediate requests, after which the next one may wait for `max_step_s`
FLOOR_ITERATIONS = 100
FLOOR_TOKENS = 16  # of a prompt that runs as the minimum
BLIND_TOKENS, BLIND_TOKENS_ALONE = 4, 64  # deferred ones, until there are predictions
NOTHING = Work(deferred=True)  # planning takes time even if no row joins
SMALLEST = Work(1, 1, 1, 1, 1, deferred=True)  # the work of a decode
MISSES = 3  # rows that do not fit, after which the iteration counts as full


class Seen(NamedTuple):
    """The newest view, in numbers. `observe` remembers them; a plan reads only its own."""

    now_s: float
    load: Load  # of immediate requests
    mixed: bool = False  # there are deferred requests
    factor: float = 1.0  # how much longer the iteration may take
    longest: int = 1  # tokens, of the longest row that may join


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of an iteration: on average, what it may take more if earlier ones took less, and
    in tokens."""

    budget_s: float
    spare_s: float
    tokens: float


class Budget(Wrapper):
    """`factor`: how much longer immediate requests may take because of deferred ones. `max_step_s`:
    the longest iteration of deferred requests alone, unless a single row takes longer. `target_s`:
    time between tokens of immediate requests that replaces the factor."""

    def __init__(
        self,
        inner: Policy,
        predictor: Predictor,
        factor: float = 1.15,
        max_step_s: float = 0.1,
        target_s: float | None = None,
    ) -> None:
        super().__init__(inner)
        self.predictor = predictor
        self.factor = factor
        self.max_step_s = max_step_s
        self.target_s = target_s
        self._seen = Seen(-math.inf, predictor.load)
        self._remembered = self._seen  # of the newest iteration that was observed
        self._pace_s = 0.0  # duration of that iteration, in which a row gets a token
        self._saved_s = 0.0  # unused rest of budgets with immediate requests
        self._newest = -1  # newest waiting request when they were last examined
        # until this time, at this pace, none of them is short of time
        self._examined_until_s, self._examined_pace_s = -math.inf, 0.0
        self._starved = 0  # iterations since a deferred row took part

    def plan(self, view: View) -> Plan:
        if not view.num_deferred:  # the next request may be, and needs this history
            load = self._remembered.load.then(view.now_s, len(view.resident), view.memory.used)
            self._seen = Seen(view.now_s, load)
        return super().plan(view)

    def mixed(self, view: View) -> Plan:
        spare = SpareCapacity(self.inner, view)
        before = self._remembered.load
        seen_s = view.now_s if spare.resident or spare.waiting else before.seen_s
        # as many more immediate requests as there are slots and memory for
        slots = view.max_batch_size / max(1, spare.num_immediate)
        memory = view.memory.num_blocks / max(1, spare.immediate_blocks)
        self._seen = seen = Seen(
            view.now_s,
            before.then(seen_s, spare.num_immediate, spare.immediate_blocks),
            mixed=True,
            factor=max(1.0, min(self.factor, slots, memory)),
            longest=max((request.computed + 1 for request in spare.paused), default=1),
        )
        immediate = Work.of(spare.plan.advance)
        allowance = self.allowance(immediate, seen.factor, seen.longest)
        steps = self._joining(spare, immediate, allowance)
        starved = self._starved + 1 >= FLOOR_ITERATIONS
        if not steps and (starved or not spare.plan.advance):
            steps = self._floor(spare)
        advance = [*spare.plan.advance, *steps]
        return Plan(advance, [*spare.plan.preempt, *spare.dropped], wake_s=spare.plan.wake_s)

    def observe(self, rows: Iterable[Served]) -> None:
        self._remembered = seen = self._seen
        if not seen.mixed:
            super().observe(rows)
            return
        immediate: list[Served] = []
        joined: list[Served] = []
        for row in rows:
            (joined if row.request.service_class == "deferred" else immediate).append(row)
        if immediate:  # for these alone the wrapped policy has planned
            super().observe(immediate)
        self._starved = 0 if joined else self._starved + 1
        work = Work.done(immediate)
        all_work = work.beside(Work.done(joined)).beside(NOTHING)
        self._pace_s = self.predictor.seconds(all_work) or 0.0
        if immediate:
            allowance = self.allowance(work, seen.factor, seen.longest)
            left_s = self._saved_s + allowance.budget_s - self._pace_s
            # a debt, as the next iteration may have been planned with the same rest
            least_s = -allowance.spare_s if joined else min(0.0, self._saved_s)
            self._saved_s = min(max(least_s, left_s), allowance.spare_s)

    def allowance(self, work: Work, factor: float, context: int) -> Allowance:
        """Of an iteration with this immediate work, that may take `factor` times as long.
        `context`: tokens, of the longest row that may join."""
        predictor = self.predictor
        blind = work.num_tokens + (BLIND_TOKENS if work.num_tokens else BLIND_TOKENS_ALONE)
        alone_s = predictor.seconds(work.scaled(1 / factor))
        if alone_s is None:
            return Allowance(math.inf, 0.0, blind)
        reach = predictor.reach_tokens  # now that it has learnt
        trusted = 1.0 + predictor.margin  # not of a factor: what slows one side slows the other
        if work.num_tokens:
            if self.target_s is not None:
                return Allowance(self.target_s / trusted, 0.0, max(reach, blind))
            row = Work(1, 1, 1, context, context, deferred=True)
            sunk_s, with_row_s = (predictor.seconds(work.beside(w)) or 0.0 for w in (NOTHING, row))
            spare_s = max(factor * (sunk_s - alone_s), with_row_s - sunk_s)
            return Allowance(factor * alone_s, spare_s, max(reach, blind))
        wait_s = self.max_step_s
        quiet = self._seen.now_s - self._seen.load.seen_s > QUIET_S
        if (ttft_s := predictor.ttft_s) is not None and not quiet:
            wait_s = min(wait_s, ttft_s * (factor - 1) / factor)
        single_s = predictor.seconds(SMALLEST) or 0.0
        wait_s = max(wait_s / trusted, factor * single_s)
        return Allowance(wait_s, 0.0, max(reach, blind))

    def _first(self, spare: SpareCapacity) -> list[Request]:
        """Who has less than twice the time it needs, by laxity; then residents, by deadline."""
        now_s, pace_s = spare.view.now_s, self._pace_s

        def rank(request: Request) -> tuple[bool, float, int]:
            needs_s = (request.max_tokens - request.generated) * pace_s
            left_s = _due_s(request) - now_s
            short = left_s < 2 * needs_s
            return not short, left_s - needs_s if short else left_s, request.id

        ranked = [(rank(request), request) for request in spare.paused]
        if spare.places > 0 and self._may_be_short(spare):
            waiting = ((rank(request), request) for request in spare.queue)
            ranked += heapq.nsmallest(spare.places, (one for one in waiting if not one[0][0]))
        return [request for _, request in sorted(ranked)]

    def _may_be_short(self, spare: SpareCapacity) -> bool:
        """Whether someone who waits may be short of time. The queue may be long and iterations are
        short, so all of it is examined once a second, or after an arrival."""
        newest, now_s = spare.queue[-1].id if spare.queue else -1, spare.view.now_s
        if (
            newest != self._newest
            or now_s >= self._examined_until_s
            or self._pace_s > self._examined_pace_s
        ):
            self._newest, self._examined_pace_s = newest, 2 * self._pace_s
            short_s = (_due_s(r) - 2 * r.max_tokens * self._examined_pace_s for r in spare.queue)
            self._examined_until_s = min(now_s + 1.0, min(short_s, default=math.inf))
        return now_s >= self._examined_until_s

    def _newcomers(self, spare: SpareCapacity, besides: Sequence[Request]) -> list[Request]:
        """Of those who wait, as many as there are places, by deadline."""
        if spare.places <= 0:
            return []
        chosen = {request.id for request in besides}
        others = (request for request in spare.queue if request.id not in chosen)
        return heapq.nsmallest(spare.places, others, lambda request: (_due_s(request), request.id))

    def _joining(self, spare: SpareCapacity, work: Work, allowance: Allowance) -> list[Advance]:
        seconds, steps = self.predictor.seconds, list[Advance]()
        spare_s = allowance.spare_s
        most_s = allowance.budget_s + min(max(self._saved_s, -spare_s), spare_s)
        if (seconds(work.beside(SMALLEST)) or 0.0) > most_s:
            return []
        misses, closed = 0, False

        def candidates() -> Iterator[Request]:
            first = self._first(spare)
            yield from first
            if not (misses or closed):  # most iterations are full by now
                yield from self._newcomers(spare, first)

        def fits(step: Advance) -> bool:
            more = work.plus(step)
            return more.num_tokens <= allowance.tokens and (seconds(more) or 0.0) <= most_s

        for request in candidates():
            most = request.known - request.computed
            if not request.resident and (misses or closed or not self._may_come(request, spare)):
                closed = True  # a smaller one does not overtake it
                continue
            if request.resident and not spare.fits(Advance(request, most)):
                most = 0  # it needs another block for its next token, and there is none
            tokens = most
            if most and not fits(Advance(request, most)):
                sizes = range(1, most)
                tokens = bisect_left(sizes, True, key=lambda n: not fits(Advance(request, n)))
            if tokens:
                step = Advance(request, tokens)
                work = work.plus(step)
                spare.take(step)
                steps.append(step)
            if not tokens:  # reserved for this one: cheaper ones behind it could take it for ever
                most_s = min(most_s, allowance.budget_s)
            if tokens < most:
                misses += 1
                if misses == MISSES:
                    break
        return steps

    def _may_come(self, request: Request, spare: SpareCapacity) -> bool:
        """Whether it fits, beside those that immediate requests are likely to need soon."""
        if not spare.fits(Advance(request, 1)):
            return False
        deferred = len(spare.paused) + spare.admitted
        return not deferred or (
            self._seen.load.residents + deferred + 1 <= spare.view.max_resident
            and self._seen.load.blocks + spare.blocks_beside(request) <= spare.memory.num_blocks
        )

    def _floor(self, spare: SpareCapacity) -> list[Advance]:
        first = self._first(spare)
        steps = [
            Advance(request, min(request.known - request.computed, FLOOR_TOKENS))
            for request in (*first, *self._newcomers(spare, first))
        ]
        for step in steps:
            if spare.fits(step):
                return [step]
        if spare.plan.advance:
            return []
        # nothing else frees blocks, so the growth of this one has to preempt others
        return [step for step in steps if step.request.resident and not step.request.done][:1]


def _due_s(request: Request) -> float:
    within_s = DAY_S if request.deadline_s is None else request.deadline_s
    return request.arrival_s + within_s
