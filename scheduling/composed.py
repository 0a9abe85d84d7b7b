"""A policy out of three parts: an order, an admission, and chunks.

The order says who comes first. The admission is `Joining`, where residents run until they are done
and newcomers take free places, or `Pausing`, where the first of all run and the others pause. The
chunks say how many tokens each computes: any policy that plans what it is shown, in its order.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from scheduling.fitting import is_decoding
from scheduling.lending import LentMemory
from scheduling.waiting import Group, Waiting
from seams import Observer, Plan, Policy, Request, Served, View

KEPT = 10_000  # users, programs or requests of which something is remembered


class Order(ABC):
    """Who comes first: groups by their rank, and within a group by `rank`, then by arrival.
    `oldest_every`: of so many iterations that pause requests, one goes by arrival alone, so that no
    request waits for ever; None: some may."""

    oldest_every: int | None = None

    def __init__(self) -> None:
        self.waiting = Waiting(self)

    def group(self, request: Request) -> Group:
        return 0

    def group_rank(self, group: Group) -> Any:
        return 0

    @abstractmethod
    def rank(self, request: Request) -> Any:
        """The lowest is the first."""

    def key(self, request: Request) -> Any:
        """Compares residents with waiting requests."""
        return self.group_rank(self.group(request)), self.rank(request), request.id

    def first(self, view: View, most: int) -> list[Request]:
        """The first of the waiting requests."""
        return self.waiting.first(view, most)

    def observe(self, rows: Iterable[Served]) -> None:  # noqa: B027
        """As `seams.Observer`."""

    def joined(self, group: Group) -> None:  # noqa: B027
        """As `waiting.QueueOrder`, as are the next two."""

    def choose(self, request: Request, view: View) -> None:  # noqa: B027
        pass

    def forget_choices(self) -> None:  # noqa: B027
        pass


class Sorted(Order):
    """An order that changes with time, so that every plan looks at all waiting requests."""

    def first(self, view: View, most: int) -> list[Request]:
        return heapq.nsmallest(most, view.waiting, key=lambda r: (self.rank_in(view, r), r.id))

    def rank(self, request: Request) -> Any:
        return 0

    @abstractmethod
    def rank_in(self, view: View, request: Request) -> Any: ...


class Attained(OrderedDict[Any, float]):
    """A number of each key, 0 at first. The keys that were idle for longest are forgotten."""

    def add(self, key: Any, more: float) -> None:
        self._set(key, self.get(key, 0.0) + more)

    def raise_to(self, key: Any, value: float) -> None:
        self._set(key, max(value, self.get(key, 0.0)))

    def _set(self, key: Any, value: float) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > KEPT:
            self.popitem(last=False)


class EndUserTurns:
    """Within a user, the end users take turns: start-time fair queueing with requests of equal cost
    (Goyal et al., SIGCOMM '96). A request keeps its turn when it is preempted, and its end user
    does not get back the turn of one that is cancelled."""

    def __init__(self) -> None:
        self._last = Attained()  # by user, and by user and end user: the newest turn
        self._given = Attained()  # by request

    def of(self, request: Request, first: float | None) -> float:
        """The turn of a request. `first`: the turn that is first now; None: no request waits."""
        if (given := self._given.get(request.id)) is not None:
            return given
        own = request.user, request.end_user
        now = self._last.get(request.user, 0.0) if first is None else first
        turn = max(self._last.get(own, 0.0) + 1, now)
        self._last.raise_to(own, turn)
        self._last.raise_to(request.user, turn)
        self._given.raise_to(request.id, turn)
        return turn


class Joining:
    """Residents run until they are done; newcomers join in order while there are places."""

    answers: Literal["own", "batch"] = "own"

    def __init__(self, order: Order, chunks: Policy) -> None:
        self.order = order
        self.chunks = chunks

    def plan(self, view: View) -> Plan:
        places = view.max_batch_size - len(view.resident)
        return self.chunks.plan(replace(view, waiting=self.order.first(view, max(0, places))))

    def observe(self, rows: Iterable[Served]) -> None:
        self.order.observe(rows)
        if isinstance(self.chunks, Observer):
            self.chunks.observe(rows)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return [request for request in resident if request.done]


class Pausing(Joining):
    """The first of all run, resident or not; other residents pause and keep their memory, unless
    a request before them needs it. That of a running one is taken where the order has no
    `oldest_every`, and in an iteration by arrival."""

    def __init__(self, order: Order, chunks: Policy) -> None:
        super().__init__(order, chunks)
        self._iterations = 0

    def plan(self, view: View) -> Plan:
        limit, order = view.max_batch_size, self.order
        every = order.oldest_every
        by_age = every is not None and self._iterations % every == every - 1
        chosen = _oldest(view, limit) if by_age else order.first(view, limit)
        key = _age if by_age else order.key
        residents = sorted((r for r in view.resident if not r.done), key=key)
        top = heapq.nsmallest(limit, [*residents, *chosen], key=key)
        new = [request for request in top if not request.resident]
        victims = residents
        if every is not None and not by_age:
            paused = residents[len(top) - len(new) :]
            oldest = min((r.id for r in residents), default=None)
            victims = [request for request in paused if request.id != oldest]
        new, dropped = _admitted(view, new, victims, key)
        gone = {request.id for request in dropped}
        running = [request for request in residents if request.id not in gone]
        if new:  # a prompt does not continue before a newcomer that precedes it
            first = key(new[0])
            running = [r for r in running if is_decoding(r) or key(r) < first]
        running = running[: limit - len(new)]
        if not (running or new):  # their last tokens are in flight
            running = list(view.resident[:limit])
        memory = LentMemory(view.memory, dropped)
        plan = self.chunks.plan(replace(view, waiting=new, resident=running, memory=memory))
        planned = {step.request.id for step in plan.advance}
        if dropped and not all(request.id in planned for request in new):
            new = [request for request in new if request.id in planned]
            _, dropped = _admitted(view, new, dropped, key)
        return replace(plan, preempt=dropped)

    def observe(self, rows: Iterable[Served]) -> None:
        self._iterations += 1
        super().observe(rows)


def _age(request: Request) -> int:
    return request.id


def _oldest(view: View, most: int) -> list[Request]:
    """The oldest of the waiting requests."""
    waiting = view.waiting
    if not view.num_deferred:  # preempted ones in order of arrival, then the others
        others = bisect_left(waiting, True, key=lambda request: not request.num_preemptions)
        waiting = [*waiting[: min(most, others)], *waiting[others : others + most]]
    return heapq.nsmallest(most, waiting, key=_age)


def _admitted(
    view: View, new: Sequence[Request], residents: Sequence[Request], key: Callable[[Request], Any]
) -> tuple[list[Request], list[Request]]:
    """The first of `new` that can be admitted, and the last of `residents` that have to be
    preempted for them, of those behind the first that does not fit."""
    places = view.max_resident - len(view.resident)
    count = view.memory.fit(new[: max(0, places)])
    if count == len(new):
        return list(new), []
    victims = residents[bisect_left(residents, key(new[count]), key=key) :]
    if not victims:
        return list(new[:count]), []
    new = new[: bisect_left(new, key(victims[0]), key=key)]
    count = view.memory.fit(new[: max(0, places + len(victims))], victims)

    def fits(dropped: int) -> bool:
        leaving = victims[len(victims) - dropped :]
        return count <= places + dropped and view.memory.fit(new[:count], leaving) == count

    dropped = max(0, count - places)
    if not fits(dropped):
        dropped = bisect_left(range(len(victims)), True, dropped + 1, key=fits)
    return list(new[:count]), list(victims[len(victims) - dropped :])
