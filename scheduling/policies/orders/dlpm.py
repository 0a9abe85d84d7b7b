"""Fairness between users, and their prefixes stay in the cache: among users who are not ahead of
the others by more than a quantum, the request with the longest prefix hit comes first.

Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (arXiv 2501.14312): deficit longest
prefix match. A user's deficit is `QUANTUM` minus what it was served beyond the user who was served
least; users with a positive deficit compete by prefix. The paper reports up to 2.87 times the
throughput of VTC with nearly its fairness. The service of two backlogged users differs by at most a
quantum more than under VTC.

Prefixes are compared among the first `WINDOW` requests in VTC's order, so that a plan looks at
O(n + WINDOW log n) of n waiting requests. Without a prefix cache it is VTC.
"""

from __future__ import annotations

from scheduling.policies.orders.vtc import VTC
from seams import Request, View

QUANTUM = 1024.0  # in VTC's cost
WINDOW = 64


class DLPM(VTC):
    def first(self, view: View, most: int) -> list[Request]:
        window = super().first(view, max(most, WINDOW))
        if not window:
            return []
        least = min(self.group_rank(request.user) for request in window)
        places = {request.id: place for place, request in enumerate(window)}

        def rank(request: Request) -> tuple[bool, int, int]:
            ahead = self.group_rank(request.user) - least >= QUANTUM
            hit_tokens = 0 if ahead else view.memory.hit_tokens(request)
            return ahead, -hit_tokens, places[request.id]

        return sorted(window, key=rank)[:most]
