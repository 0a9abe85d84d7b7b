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
from seams import Plan, Policy, Request, View


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
    every iteration."""

    def mixed(self, view: View) -> Plan:
        waiting, queue = by_class(view.waiting)
        return self.inner.plan(replace(view, waiting=[*waiting, *queue]))


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
