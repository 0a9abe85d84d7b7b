"""One request at a time, first come first served: what serving without batching means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from seams import Advance, Plan, Request, View


class NoBatch:
    answers: Literal["own", "batch"] = "own"

    def plan(self, view: View) -> Plan:
        for request in (*view.resident, *view.waiting[:1]):
            return Plan([Advance(request, request.known - request.computed)])
        return Plan()

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return [request for request in resident if request.done]
