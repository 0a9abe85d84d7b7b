"""The waiting requests in an order of a policy, kept from plan to plan.

Requests form groups, which have a rank that may change; within its group a request has a rank that
does not change while it waits. A plan looks at O((c + k) log n) of n requests, where c have come,
gone or moved since the last one and k are chosen. What was seen is an index of the views, not a
count: a plan that is dropped leaves the next one as it would be.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Hashable
from typing import Any, Protocol

from seams import Request, View

Group = Any  # a hashable that can be compared
Entry = tuple[Any, int, Request]  # rank, id


class Ranks(Protocol):
    """What decides the order; the lowest rank is the first."""

    def group(self, request: Request) -> Group: ...

    def group_rank(self, group: Group) -> Any: ...

    def rank(self, request: Request) -> Any:
        """Within its group. Asked once, when the request begins to wait."""

    def joined(self, group: Group) -> None:
        """A group without waiting requests is about to have one."""

    def choose(self, request: Request, view: View) -> None:
        """The request is chosen by the present plan, which may change the rank of its group..."""

    def forget_choices(self) -> None:
        """...until the plan is complete."""


class Waiting:
    """`last_left`: the group of which the last request left, None if none has."""

    def __init__(self, ranks: Ranks) -> None:
        self.last_left: Group | None = None
        self._ranks = ranks
        self._clear()
        self._mixed: dict[int, Request] | None = None  # all, where there are deferred requests

    def _clear(self) -> None:
        self._heaps: dict[Hashable, list[Entry]] = {}
        self._groups: list[tuple[Any, Any, int, Group]] = []  # a heap; some are out of date
        self._current: dict[Hashable, tuple[Any, Any, int, Group]] = {}  # those that are not
        self._entries: dict[int, Entry] = {}  # of waiting requests, by id
        self._outside: dict[int, Request] = {}  # residents, which may be preempted
        self._newest = -1

    def first(self, view: View, most: int) -> list[Request]:
        """The first of the waiting requests."""
        self._follow(view)
        taken: list[tuple[Group, Entry]] = []
        found: list[Request] = []
        while len(found) < most and (group := self.best()) is not None:
            entry = heapq.heappop(self._heaps[group])
            taken.append((group, entry))
            if (request := self._shown(view, entry[-1])) is not None:
                found.append(request)
                self._ranks.choose(request, view)
            self.moved(group)
        self._ranks.forget_choices()
        for group, entry in taken:
            heapq.heappush(self._heaps[group], entry)
        for group in {group for group, _ in taken}:
            self.moved(group)
        return found

    def best(self) -> Group | None:
        """The group of the first waiting request."""
        while self._groups:
            entry = self._groups[0]
            group = entry[-1]
            if self._current.get(group) is not entry:
                heapq.heappop(self._groups)
            elif self._drop_gone(self._heaps[group]):
                self.moved(group)
                if not self._heaps[group]:
                    self._left(group)
            else:
                return group
        return None

    def first_rank(self, group: Group) -> Any:
        """Of its first request; None if there is none."""
        heap = self._heaps.get(group)
        return heap[0][0] if heap else None

    def moved(self, group: Group) -> None:
        """Its rank, or its first request, may have changed."""
        heap = self._heaps.get(group)
        if heap is None:
            return
        self._drop_gone(heap)
        if not heap:
            self._current.pop(group, None)
            return
        rank, id, _ = heap[0]
        entry = (self._ranks.group_rank(group), rank, id, group)
        if self._current.get(group) != entry:
            self._current[group] = entry
            heapq.heappush(self._groups, entry)
        if len(self._groups) > 2 * len(self._current) + 64:
            self._groups = list(self._current.values())
            heapq.heapify(self._groups)

    # --- following the views ----------------------------------------------------------------

    def _follow(self, view: View) -> None:
        known = set[Hashable]()
        if view.num_deferred or self._mixed is not None:
            # such views show some requests now and then only, and in another order
            known = set(self._heaps)
            self._clear()
        mixed = {request.id: request for request in view.waiting} if view.num_deferred else None
        self._mixed = mixed
        self._preempted = bisect_left(
            view.waiting, True, key=lambda request: not request.num_preemptions
        )
        for request in view.resident:
            if request.id not in self._outside:
                self._outside[request.id] = request
                self._entries.pop(request.id, None)
        for request in [one for one in self._outside.values() if not one.resident]:
            if request.done:
                del self._outside[request.id]
            elif (shown := self._shown(view, request)) is not None:
                del self._outside[request.id]
                self._push(shown, known)
        new = []
        for i in range(len(view.waiting) - 1, -1, -1):
            request = view.waiting[i]
            if request.id <= self._newest:
                break
            new.append(request)
        for request in reversed(new):
            if request.id not in self._entries:
                self._push(request, known)
        if new:
            self._newest = max(self._newest, max(request.id for request in new))

    def _push(self, request: Request, known: set[Hashable]) -> None:
        group = self._ranks.group(request)
        self.moved(group)
        if group not in self._current and group not in known:
            if group in self._heaps:
                self._left(group)
            self._ranks.joined(group)
        entry = (self._ranks.rank(request), request.id, request)
        self._entries[request.id] = entry
        heapq.heappush(self._heaps.setdefault(group, []), entry)
        self.moved(group)

    def _left(self, group: Group) -> None:
        del self._heaps[group]
        self.last_left = group

    def _drop_gone(self, heap: list[Entry]) -> bool:
        """Removes what no longer waits from the top."""
        before = len(heap)
        while heap:
            entry = heap[0]
            request = entry[-1]
            if self._entries.get(request.id) is entry:
                if not (request.resident or request.done):
                    break
                del self._entries[request.id]
                if request.resident:
                    self._outside[request.id] = request
            heapq.heappop(heap)
        return len(heap) < before

    def _shown(self, view: View, request: Request) -> Request | None:
        """The waiting request as the view shows it."""
        if self._mixed is not None:
            return self._mixed.get(request.id)
        waiting, start, end = view.waiting, self._preempted, len(view.waiting)
        if request.num_preemptions:
            start, end = 0, start
        i = bisect_left(waiting, request.id, start, end, key=lambda one: one.id)
        return waiting[i] if i < end and waiting[i].id == request.id else None
