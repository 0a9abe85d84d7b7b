"""Iteration-level scheduling, first come first served: requests join and leave at any iteration.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI '22,
section 4.1 and algorithm 1: select in order of arrival, up to the batch limit and as long as memory
suffices. If the head of the queue does not fit, the requests behind it wait, too.

Bounds. Waiting: no request is overtaken. Decoding: every iteration advances every resident, so
between two of a request's tokens lies at most the prefill of the rest of the batch, (batch limit -
1) x context tokens."""

from __future__ import annotations

from scheduling.fitting import fitting
from seams import Advance, Plan, Policy, View


class Orca(Policy):
    def plan(self, view: View) -> Plan:
        chosen = (*view.resident, *fitting(view, view.waiting))
        return Plan([Advance(request, request.known - request.computed) for request in chosen])
