"""One request at a time, first come first served: what serving without batching means."""

from __future__ import annotations

from seams import Advance, Plan, Policy, View


class NoBatch(Policy):
    def plan(self, view: View) -> Plan:
        for request in (*view.resident, *view.waiting[:1]):
            return Plan([Advance(request, request.known - request.computed)])
        return Plan()
