"""What immediate requests leave of an iteration: the wrapped policy plans for them as though no
deferred ones were there, and those give up what it takes.

Memory and places that deferred requests hold count as free. If it comes to that they lose them,
those with the fewest computed tokens first: what is dropped is computed again later, and so least
is (the victims of vLLM's preemption, the latest arrivals, cost twice as much of it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seams import Advance, Memory, Need, Plan, Policy, Request, View


@dataclass(frozen=True, slots=True)
class LentMemory:
    """The memory as immediate requests see it."""

    memory: Memory
    lent: int  # tokens that deferred requests hold

    @property
    def budget(self) -> int:
        return self.memory.budget

    @property
    def used(self) -> int:
        return self.memory.used - self.lent

    def cost(self, needs: Sequence[Need]) -> int:
        return self.memory.cost(needs)


def by_class(requests: Iterable[Request]) -> tuple[list[Request], list[Request]]:
    """The immediate ones, and the deferred ones."""
    both: tuple[list[Request], list[Request]] = ([], [])
    for request in requests:
        both[request.service_class == "deferred"].append(request)
    return both


class Gap:
    """`plan`: of the immediate requests. `dropped`: deferred residents that lose their memory to
    it. `paused`: those that keep it. `places`, `free`: what is left, in requests and tokens."""

    def __init__(self, inner: Policy, view: View) -> None:
        self.view = view
        self.memory = view.memory
        self.resident, deferred = by_class(view.resident)
        self.waiting, self.queue = by_class(view.waiting)
        self.plan = Plan()
        if self.resident or self.waiting:
            lent = LentMemory(view.memory, self.held(deferred))
            shown = View(view.now_s, self.waiting, self.resident, view.max_batch_size, lent, 0)
            self.plan = inner.plan(shown)
        new = [step.request for step in self.plan.advance if not step.request.room]
        self.crowd = len(self.resident) - len(self.plan.preempt) + len(new)
        self.crowd_tokens = self._cost(new) + self.held(self.resident)
        self.places = view.max_batch_size - self.crowd - len(deferred)
        self.free = (
            view.memory.budget
            - view.memory.used
            + self.held(self.plan.preempt)
            - self._cost(new)
            - sum(self.growth(step) for step in self.plan.advance)
        )
        self.dropped: list[Request] = []
        self.paused = deferred
        if self.places < 0 or self.free < 0:
            self.paused = sorted(deferred, key=lambda r: (-r.computed, r.id))
        while self.paused and (self.places < 0 or self.free < 0):
            victim = self.paused.pop()
            self.dropped.append(victim)
            self.places += 1
            self.free += self.held([victim])
        self.admitted: list[Request] = []  # deferred ones, by `take`

    @staticmethod
    def held(requests: Iterable[Request]) -> int:
        return sum(request.room for request in requests)

    def growth(self, step: Advance) -> int:
        """The most tokens that the room of a resident grows by, if it takes this step."""
        request = step.request
        lacking = request.computed + step.tokens - request.room
        if lacking <= 0 or not request.room:
            return 0
        return max(lacking, request.need.further + 1)

    def fits(self, request: Request) -> bool:
        """Whether one that waits could be admitted."""
        return self.places > 0 and self._cost([request]) <= self.free

    def take(self, step: Advance) -> None:
        """The step of a deferred request joins the iteration."""
        if step.request.room:
            self.free -= self.growth(step)
        else:
            self.places -= 1
            self.free -= self._cost([step.request])
            self.admitted.append(step.request)

    def _cost(self, requests: Sequence[Request]) -> int:
        return self.memory.cost([r.need for r in requests]) if requests else 0
