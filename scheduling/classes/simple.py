"""Simple ways to serve two classes of requests: the baselines of `scheduling/classes/budget.py`,
and all that modes without iteration-level scheduling can do. A wrapped policy that is shown no
deferred request plans as it does alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
        besides = view.memory.fit([*waiting, *queue[: max(0, places)]]) - len(waiting)
        plan = self.inner.plan(replace(view, waiting=[*waiting, *queue[: max(0, besides)]]))
        # where residents grow, the last of the newcomers may have to wait again
        return replace(plan, advance=sorted(plan.advance, key=_is_deferred_newcomer))


def _is_deferred_newcomer(step: Advance) -> bool:
    return step.request.service_class == "deferred" and not step.request.resident


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
