"""Simple ways to serve two classes of requests: baselines for `scheduling/classes/budget.py`, and
the only options of modes without iteration-level scheduling. Without deferred requests a wrapped
policy plans as it does alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduling.classes.spare import SpareCapacity, by_class
from seams import Observer, Plan, Policy, Request, Served, View


class Wrapper(Policy, ABC):
    """A policy around another."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.answers = inner, inner.answers
        self._observer = inner if isinstance(inner, Observer) else None

    def plan(self, view: View) -> Plan:
        return self.mixed(view) if view.num_deferred else self.inner.plan(view)

    @abstractmethod
    def mixed(self, view: View) -> Plan:
        """The plan when there are deferred requests."""

    def observe(self, rows: Iterable[Served]) -> None:
        if self._observer is not None:
            self._observer.observe(rows)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return self.inner.retire(resident)


class Priority(Wrapper):
    """Immediate requests are admitted first; all residents are treated alike and decode in every
    iteration. A wrapped policy may sort its queue, so it sees only as many deferred requests as fit
    beside all waiting immediate ones; and none where tokens for those would run out."""

    def mixed(self, view: View) -> Plan:
        waiting, queue = by_class(view.waiting)
        places = view.max_batch_size - len(view.resident) - len(waiting)
        besides = view.memory.fit([*waiting, *queue[: max(0, places)]]) - len(waiting)
        plan = self.inner.plan(replace(view, waiting=[*waiting, *queue[: max(0, besides)]]))
        new, deferred = by_class(s.request for s in plan.advance if not s.request.resident)
        if deferred and len(new) < len(waiting):
            plan = self.inner.plan(replace(view, waiting=waiting))
        # if residents grow, the last newcomers may have to wait again
        late = {request.id for request in deferred}
        return replace(plan, advance=sorted(plan.advance, key=lambda s: s.request.id in late))


class NoneWaiting(Wrapper):
    """A deferred request is admitted only while no immediate one waits."""

    def mixed(self, view: View) -> Plan:
        waiting, queue = by_class(view.waiting)
        return self.inner.plan(replace(view, waiting=waiting or queue))


class Exclusive(Wrapper):
    """Deferred requests advance only while there is no immediate one; otherwise they are paused,
    and give up slots and memory that immediate ones need."""

    def mixed(self, view: View) -> Plan:
        spare = SpareCapacity(self.inner, view)
        if not (spare.resident or spare.waiting):
            return self.inner.plan(view)
        return replace(spare.plan, preempt=[*spare.plan.preempt, *spare.dropped])
