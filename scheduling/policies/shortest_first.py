"""Iteration-level scheduling that admits the request with the fewest tokens left to generate.

Shortest job first minimises the mean time in a queue where lengths are known (Smith, "Various
optimizers for single-stage production", 1956); here they are what clients ask for, an upper bound.
Alone it starves long requests under load, so they age: each later arrival that is admitted first
lowers a request's rank by 1/`max_bypass` of its length, down to zero. As in `orca`, if the first
request does not fit, those behind it wait, too.

Bounds. Waiting: a request is overtaken by fewer than `max_bypass` + batch limit later arrivals
(those of one iteration are admitted together). Decoding: as in `orca`, every iteration advances
every resident, so between two tokens lie at most (batch limit - 1) x context tokens of prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scheduling.fitting import fitting
from seams import Advance, Plan, Request, View


class ShortestFirst:
    """`max_bypass`: later arrivals after which a request is as good as the shortest."""

    answers: Literal["own", "batch"] = "own"

    def __init__(self, max_bypass: int = 32) -> None:
        self.max_bypass = max_bypass
        self._bypassed: dict[int, int] = {}  # waiting request -> later arrivals admitted before it

    def plan(self, view: View) -> Plan:
        new: list[Request] = []
        if len(view.resident) < view.max_batch_size:
            new = list(fitting(view, sorted(view.waiting, key=self._rank)))
        if new:
            self._age(view.waiting, {request.id for request in new})
        chosen = (*view.resident, *new)
        return Plan([Advance(request, request.known - request.computed) for request in chosen])

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return [request for request in resident if request.done]

    def _rank(self, request: Request) -> tuple[int, int]:
        patience = max(0, self.max_bypass - self._bypassed.get(request.id, 0))
        return patience * (request.max_tokens - request.generated), request.id

    def _age(self, waiting: Sequence[Request], admitted: set[int]) -> None:
        self._bypassed = {
            request.id: self._bypassed.get(request.id, 0)
            + sum(later > request.id for later in admitted)
            for request in waiting  # a planned request may still not fit, and continue to wait
        }
