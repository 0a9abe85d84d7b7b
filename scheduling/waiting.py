"""The waiting requests in an order of a policy, kept from plan to plan.

Requests form groups, which have a rank that may change. Of equal groups, the one that has waited
longest comes first, so equal newcomers do not pass it. Within its group a request has a rank that
does not change while it waits. A plan looks at O((c + k) log n) of n requests, where c have come,
gone or moved since the last one and k are chosen, and at all n while there are deferred ones. What
was seen is an index of the views, not a count: a plan that is dropped leaves the next one as it
would be.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from seams import Request, View

Group = Any  # a hashable that can be compared
Entry = tuple[Any, int, Group, Request]  # rank, id
GroupEntry = tuple[Any, int, Group]  # rank, `since`


class QueueOrder(Protocol):
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


@dataclass(slots=True)
class _Queue:
    """The waiting requests of a group."""

    since: int  # the id of the request with which the group began to wait
    heap: list[Entry] = field(default_factory=list)
    admitted: bool = False  # one of its requests, since then


class Waiting:
    """`last_left`: the newest group that stopped waiting after one of its requests was admitted;
    None if none did."""

    def __init__(self, ranks: QueueOrder) -> None:
        self.last_left: Group | None = None
        self._ranks = ranks
        self._clear()
        self._mixed: dict[int, Request] | None = None  # all, where there are deferred requests

    def _clear(self) -> None:
        self._queues: dict[Hashable, _Queue] = {}
        self._lent = set[Hashable]()  # groups from which the present plan takes requests
        self._groups: list[GroupEntry] = []  # a heap; some are out of date
        self._current: dict[Hashable, GroupEntry] = {}  # those that are not
        self._entries: dict[int, Entry] = {}  # of waiting requests, by id
        self._outside: dict[int, Request] = {}  # residents, which may be preempted
        self._newest = -1

    def first(self, view: View, most: int) -> list[Request]:
        """The first of the waiting requests."""
        self._follow(view)
        taken: list[tuple[Group, Entry]] = []
        found: list[Request] = []
        while len(found) < most and (group := self.best()) is not None:
            entry = heapq.heappop(self._queues[group].heap)
            self._lent.add(group)
            taken.append((group, entry))
            if (request := self._shown(view, entry[-1])) is not None:
                found.append(request)
                self._ranks.choose(request, view)
            self.moved(group)
        self._ranks.forget_choices()
        for group, entry in taken:
            heapq.heappush(self._queues[group].heap, entry)
        lent, self._lent = self._lent, set()
        for group in lent:
            self.moved(group)
        return found

    def best(self) -> Group | None:
        """The group of the first waiting request."""
        while self._groups:
            entry = self._groups[0]
            group = entry[-1]
            if self._current.get(group) is entry:
                self.moved(group)
                if self._current.get(group) is entry:
                    return group
            else:
                heapq.heappop(self._groups)
        return None

    def first_rank(self, group: Group) -> Any:
        """Of its first request; None if there is none."""
        queue = self._queues.get(group)
        return queue.heap[0][0] if queue is not None and queue.heap else None

    def moved(self, group: Group) -> None:
        """Its rank, or its first request, may have changed."""
        queue = self._queues.get(group)
        if queue is None:
            return
        self._drop_gone(queue)
        if not queue.heap:
            self._current.pop(group, None)
            if group not in self._lent:
                del self._queues[group]
                if queue.admitted:
                    self.last_left = group
            return
        entry = (self._ranks.group_rank(group), queue.since, group)
        if self._current.get(group) != entry:
            self._current[group] = entry
            heapq.heappush(self._groups, entry)
        if len(self._groups) > 2 * len(self._current) + 64:
            self._groups = list(self._current.values())
            heapq.heapify(self._groups)

    # --- following the views ----------------------------------------------------------------

    def _follow(self, view: View) -> None:
        for request in view.resident:
            if request.id not in self._outside:
                self._outside[request.id] = request
                if (entry := self._entries.pop(request.id, None)) is not None:
                    self._queues[entry[2]].admitted = True
                    self.moved(entry[2])
        known: Mapping[Hashable, _Queue] = {}
        if view.num_deferred or self._mixed is not None:
            # such views show some requests now and then only, and in another order
            for group in list(self._queues):
                self.moved(group)
            known = self._queues
            self._clear()
            self._outside = {request.id: request for request in view.resident}
        mixed = {request.id: request for request in view.waiting} if view.num_deferred else None
        self._mixed = mixed
        if len(self._entries) > 2 * len(view.waiting) + 64:
            self._drop_all_gone()
        self._preempted = bisect_left(
            view.waiting, True, key=lambda request: not request.num_preemptions
        )
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
        new.reverse()
        if known:  # these come first: newcomers are compared with them
            new.sort(key=lambda request: self._ranks.group(request) not in known)
        for request in new:
            if request.id not in self._entries:
                self._push(request, known)
        if new:
            self._newest = max(self._newest, max(request.id for request in new))

    def _push(self, request: Request, known: Mapping[Hashable, _Queue]) -> None:
        group = self._ranks.group(request)
        self.moved(group)
        if group in self._queues:
            queue = self._queues[group]
        elif group in known:
            queue = replace(known[group], heap=[])
        else:
            self._ranks.joined(group)
            queue = _Queue(request.id)
        entry = (self._ranks.rank(request), request.id, group, request)
        self._entries[request.id] = entry
        heapq.heappush(queue.heap, entry)
        self._queues[group] = queue
        self.moved(group)

    def _drop_gone(self, queue: _Queue) -> None:
        """Removes what no longer waits from the top."""
        while queue.heap:
            entry = queue.heap[0]
            request = entry[-1]
            if self._entries.get(request.id) is entry:
                if not (request.resident or request.done):
                    break
                del self._entries[request.id]
                if request.resident:
                    self._outside[request.id] = request
                    queue.admitted = True
            heapq.heappop(queue.heap)

    def _drop_all_gone(self) -> None:
        """Also below the top, where requests that were cancelled would stay as long as others come
        before them."""
        for group, queue in list(self._queues.items()):
            for entry in queue.heap:
                if entry[-1].done and self._entries.get(entry[1]) is entry:
                    del self._entries[entry[1]]
            queue.heap = [e for e in queue.heap if self._entries.get(e[1]) is e]
            heapq.heapify(queue.heap)
            self.moved(group)

    def _shown(self, view: View, request: Request) -> Request | None:
        """The waiting request as the view shows it."""
        if self._mixed is not None:
            return self._mixed.get(request.id)
        waiting, start, end = view.waiting, self._preempted, len(view.waiting)
        if request.num_preemptions:
            start, end = 0, start
        i = bisect_left(waiting, request.id, start, end, key=lambda one: one.id)
        return waiting[i] if i < end and waiting[i].id == request.id else None
