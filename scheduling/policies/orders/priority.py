"""Strict priority, preempting: requests of a lower number run first, then in order of arrival.

As vLLM's `--scheduling-policy priority` and many servers' queues (Kleinrock, "Queueing Systems",
volume 2, 1976, chapter 3, preemptive resume): when all rows are taken, a more urgent request pauses
the least urgent resident, which keeps its memory unless the urgent one needs that as well. Urgent
requests then see a server without the others. It makes no promise to those: they wait for as long
as more urgent requests fill the server.

O(n + k log n) of n waiting requests, and O(r log r) of r residents. With no more requests than
rows, it only chooses whose prompt is computed first; if all are equally urgent, it does nothing.
"""

from __future__ import annotations

from scheduling.composed import Order
from seams import Request


class ByPriority(Order):
    def rank(self, request: Request) -> int:
        return request.priority
