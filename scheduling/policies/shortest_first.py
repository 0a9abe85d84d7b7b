"""Iteration-level scheduling that admits the request with the fewest tokens left to generate.

Shortest job first minimises the mean time in a queue where lengths are known (Smith, "Various
optimizers for single-stage production", 1956); here they are what clients ask for, an upper bound.
Alone it starves long requests under load, so they age: each later arrival that is admitted first
lowers a request's rank by 1/`max_bypass` of its length, down to zero. As in `orca`, if the first
request does not fit, those behind it wait, too.

Bounds. Waiting: a request is overtaken by fewer than `max_bypass` + batch limit later arrivals
(those of one iteration are admitted together). Decoding: as in `orca`, every iteration advances
every resident, so between two tokens lie at most (batch limit - 1) x context tokens of prefill.

O(n log n) of n waiting requests, since their ranks change with time, while there is a free place.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable

from scheduling.fitting import fitting
from seams import Advance, Plan, Policy, Request, Served, View


class ShortestFirst(Policy):
    """`max_bypass`: later arrivals after which a request is as good as the shortest."""

    def __init__(self, max_bypass: int = 32) -> None:
        self.max_bypass = max_bypass
        self._admitted: list[int] = []  # the `max_bypass` latest arrivals that ever ran

    def plan(self, view: View) -> Plan:
        new: list[Request] = []
        if len(view.resident) < view.max_batch_size:
            # residents too, as they may be in flight
            admitted = sorted({*self._admitted, *(request.id for request in view.resident)})

            def rank(request: Request) -> tuple[int, int]:
                overtaken = len(admitted) - bisect_right(admitted, request.id)
                patience = max(0, self.max_bypass - overtaken)
                return patience * (request.max_tokens - request.generated), request.id

            new = list(fitting(view, sorted(view.waiting, key=rank)))
        chosen = (*view.resident, *new)
        return Plan([Advance(request, request.known - request.computed) for request in chosen])

    def observe(self, rows: Iterable[Served]) -> None:
        ran = {*self._admitted, *(row.request.id for row in rows)}
        self._admitted = heapq.nlargest(self.max_bypass, ran)
