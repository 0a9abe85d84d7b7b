"""Simple ways to serve two classes of requests: the baselines of `scheduling/classes/budget.py`,
and all that modes without iteration-level scheduling can do. A wrapped policy that is shown no
deferred request plans as it does alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from scheduling.classes.gap import Gap, by_class
from seams import Advance, Plan, Policy, Request, View


class Wrapper(ABC):
    """A policy around another."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    @property
    def answers(self) -> Literal["own", "batch"]:
        return self.inner.answers

    def plan(self, view: View) -> Plan:
        return self.mixed(view) if view.deferred else self.inner.plan(view)

    @abstractmethod
    def mixed(self, view: View) -> Plan:
        """The plan where deferred requests are there."""

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return self.inner.retire(resident)


class Priority(Wrapper):
    """Immediate requests are admitted first; whoever is resident is treated alike, and decodes in
    every iteration. A wrapped policy may sort its queue, so of the deferred requests it is shown
    only as many as fit beside all immediate ones that wait."""

    def mixed(self, view: View) -> Plan:
        waiting, queue = by_class(view.waiting)
        places = view.max_batch_size - len(view.resident) - len(waiting)
        free = view.memory.budget - view.memory.used
        needs = [request.need for request in (*waiting, *queue[: max(0, places)])]
        sizes = range(len(waiting) + 1, len(needs) + 1)
        fit = bisect_left(sizes, True, key=lambda size: view.memory.cost(needs[:size]) > free)
        plan = self.inner.plan(replace(view, waiting=[*waiting, *queue[:fit]]))
        # where residents grow, the last of those who are to be admitted may have to wait again
        return replace(plan, advance=sorted(plan.advance, key=_is_deferred_newcomer))


def _is_deferred_newcomer(step: Advance) -> bool:
    return step.request.service_class == "deferred" and not step.request.room


class NoneWaiting(Wrapper):
    """A deferred request is admitted only while no immediate one waits."""

    def mixed(self, view: View) -> Plan:
        waiting, queue = by_class(view.waiting)
        return self.inner.plan(replace(view, waiting=waiting or queue))


class Exclusive(Wrapper):
    """Deferred requests advance only while no immediate one is there; else they are paused, and
    give up places and memory that immediate ones need."""

    def mixed(self, view: View) -> Plan:
        gap = Gap(self.inner, view)
        if not (gap.resident or gap.waiting):
            return self.inner.plan(view)
        return replace(gap.plan, preempt=[*gap.plan.preempt, *gap.dropped])
