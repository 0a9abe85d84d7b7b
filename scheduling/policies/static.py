"""Request-level ("static") batching: a batch forms, runs until its longest request is done, and
only then is the next one formed.

This is how `transformers`' generate and the servers before iteration-level scheduling work; the
Orca paper (OSDI '22, section 3.1) describes the cost: a request that is done early keeps its
place, and one that arrives late waits for the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scheduling.fitting import fitting
from seams import Advance, Plan, Policy, Request, View


class Static(Policy):
    """`max_wait_s`: how long the oldest request may wait for others to join its batch.
    `answers`: "batch" sends every answer when the batch ends, "own" each when it is complete."""

    def __init__(self, max_wait_s: float, answers: Literal["own", "batch"] = "batch") -> None:
        self.max_wait_s = max_wait_s
        self.answers = answers

    def plan(self, view: View) -> Plan:
        if view.resident:
            return Plan(
                [Advance(r, r.known - r.computed) for r in view.resident if not r.done],
                hold=[request for request in view.resident if request.done],
            )
        if not view.waiting:
            return Plan()
        forming_until_s = min(r.arrival_s for r in view.waiting) + self.max_wait_s
        if len(view.waiting) < view.max_batch_size and view.now_s < forming_until_s:
            return Plan(wake_s=forming_until_s)
        return Plan([Advance(r, r.known - r.computed) for r in fitting(view, view.waiting)])

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return resident if all(request.done for request in resident) else ()
