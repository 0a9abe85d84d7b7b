"""The spare capacity of an iteration: the wrapped policy plans for the immediate requests as if
there were no deferred ones, and those give up what it needs.

Memory and slots of deferred requests count as free. If they are needed, the deferred requests with
the fewest computed tokens are dropped first, since dropped tokens are computed again later (vLLM
preempts the latest arrivals, which costs twice as many tokens).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from scheduling.fitting import PreemptibleMemory
from seams import Advance, Plan, Policy, Request, Trial, View


def by_class(requests: Iterable[Request]) -> tuple[list[Request], list[Request]]:
    """The immediate ones, and the deferred ones."""
    both: tuple[list[Request], list[Request]] = ([], [])
    for request in requests:
        both[request.service_class == "deferred"].append(request)
    return both


class SpareCapacity:
    """`plan`: for the immediate requests. `dropped`: deferred residents that lose their memory to
    it. `paused`: those that keep it. `places`: how many more requests may be resident. `rows`: how
    many more the iteration may have.
    `num_immediate`, `immediate_blocks`: immediate residents of the iteration, and their KV
    memory."""

    def __init__(self, inner: Policy, view: View) -> None:
        self.view = view
        self.memory = view.memory
        self.resident, deferred = by_class(view.resident)
        self.waiting, self.queue = by_class(view.waiting)
        self.plan = Plan()
        if self.resident or self.waiting:
            memory = PreemptibleMemory(view.memory, deferred)
            self.plan = inner.plan(
                replace(
                    view,
                    waiting=self.waiting,
                    resident=self.resident,
                    memory=memory,
                    num_deferred=0,
                )
            )
        new = [step for step in self.plan.advance if not step.request.resident]
        self.num_immediate = len(self.resident) - len(self.plan.preempt) + len(new)
        self.places = view.max_resident - self.num_immediate - len(deferred)
        self.rows = view.max_batch_size - len(self.plan.advance)
        self.dropped: list[Request] = []
        self.paused = deferred
        self._trial = self._planned()
        if self.places < 0 or self._trial.free < 0:
            self.paused = sorted(deferred, key=lambda r: (-r.computed, r.id))
        while self.paused and (self.places < 0 or self._trial.free < 0):
            self.dropped.append(self.paused.pop())
            self.places += 1
            self._trial = self._planned()
        self.immediate_blocks = self.memory.freed(self.resident) + sum(map(self._trial.cost, new))
        self.admitted = self.admitted_blocks = 0  # deferred requests, by `take`

    def _planned(self) -> Trial:
        """The blocks beside those of immediate and paused requests."""
        trial = self.memory.trial([*self.plan.preempt, *self.dropped])
        for step in self.plan.advance:
            trial.charge(step, trial.cost(step))
        return trial

    def fits(self, step: Advance) -> bool:
        """Whether there are a row, a place and blocks for the step of a deferred request."""
        has_place = step.request.resident or self.places > 0
        return has_place and self.rows > 0 and self._trial.cost(step) <= self._trial.free

    def take(self, step: Advance) -> None:
        """Adds the step of a deferred request to the iteration."""
        cost = self._trial.cost(step)
        self._trial.charge(step, cost)
        self.rows -= 1
        if not step.request.resident:
            self.places -= 1
            self.admitted += 1
            self.admitted_blocks += cost

    def blocks_beside(self, request: Request) -> int:
        """Blocks of all deferred residents if this one were admitted, too."""
        cost = self._trial.cost(Advance(request, 1))
        return self.memory.freed(self.paused) + self.admitted_blocks + cost
