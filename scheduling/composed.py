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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from scheduling.fitting import PreemptibleMemory, is_decoding
from seams import Observer, Plan, Policy, Request, Served, View

REMEMBERED = 2**15  # users, programs or requests of which a number is known: more than may wait

Group = Any  # a hashable


class Order:
    """Who comes first. Requests form groups, such as those of a user, whose rank may change. Of
    equal groups the one that has waited longest is first, so equal newcomers do not pass it. Within
    its group a request has a rank that does not change while it waits; equal ones go by arrival.
    The lowest rank is the first. A plan looks at all waiting requests.
    `oldest_every`: of so many iterations that pause requests, one goes by arrival alone, so that no
    request waits for ever; None: some may."""

    oldest_every: int | None = None

    def __init__(self) -> None:
        self.waited: set[int] = set()  # requests, in the newest view
        self._since: dict[Group, int] = {}  # of their groups: the request with which each began to

    def group(self, request: Request) -> Group:
        return 0

    def group_rank(self, group: Group) -> Any:
        return 0

    def rank(self, request: Request) -> Any:
        """Within its group."""
        return 0

    def ranks(self, queue: Sequence[Request]) -> Sequence[Any]:
        """Of the waiting requests of a group."""
        return [self.rank(request) for request in queue]

    def key(self, request: Request) -> Any:
        """Compares residents with waiting requests."""
        return self.group_rank(self.group(request)), self.rank(request), request.id

    def first(self, view: View, most: int) -> list[Request]:
        """The first of the waiting requests."""
        queues: dict[Group, list[Request]] = {}
        for request in view.waiting:
            queues.setdefault(self.group(request), []).append(request)
        waited, since = self.waited, self._since
        since = {
            group: since[group]
            for group, queue in queues.items()
            if group in since and any(request.id in waited for request in queue)
        }
        if new := [group for group in queues if group not in since]:
            self.joined(new, since)
            since.update((group, queues[group][0].id) for group in new)
        self.waited, self._since = {request.id for request in view.waiting}, since
        groups = [(self.group_rank(group), id, group) for group, id in since.items()]
        heapq.heapify(groups)
        heaps: dict[Group, list[tuple[Any, int, Request]]] = {}  # of the groups that are reached
        chosen: list[Request] = []
        while groups and len(chosen) < most:
            _, id, group = groups[0]
            if group not in heaps:
                ranks = zip(self.ranks(queues[group]), queues[group], strict=True)
                heaps[group] = [(rank, request.id, request) for rank, request in ranks]
                heapq.heapify(heaps[group])
            chosen.append(heapq.heappop(heaps[group])[-1])
            self.choose(chosen[-1], view)
            if heaps[group]:
                heapq.heapreplace(groups, (self.group_rank(group), id, group))
            else:
                heapq.heappop(groups)
        self.forget_choices()
        return chosen

    def observe(self, rows: Iterable[Served]) -> None:
        """As `seams.Observer`."""

    def joined(self, groups: Sequence[Group], waiting: Collection[Group]) -> None:
        """`groups` begin to wait, beside those that wait already."""

    def choose(self, request: Request, view: View) -> None:
        """The request is chosen by the present plan, which may change the rank of its group..."""

    def forget_choices(self) -> None:
        """...until the plan is complete."""


class Sorted(Order, ABC):
    """An order in which the rank of each request changes with time."""

    def first(self, view: View, most: int) -> list[Request]:
        return heapq.nsmallest(most, view.waiting, key=lambda r: (self.rank_in(view, r), r.id))

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
        if len(self) > REMEMBERED:
            self.popitem(last=False)


class Joining(Policy):
    """Residents run until they are done; newcomers join in order while there are places."""

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
        chosen = heapq.nsmallest(limit, view.waiting, _age) if by_age else order.first(view, limit)
        here = [request for request in view.resident if not request.done]
        rank = _age if by_age else order.key
        keys = {request.id: rank(request) for request in (*here, *chosen)}

        def key(request: Request) -> Any:
            return keys[request.id]

        residents = sorted(here, key=key)
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
        memory = PreemptibleMemory(view.memory, dropped)
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
