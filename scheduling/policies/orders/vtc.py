"""Fairness between users: the next request is of the user who was served least.

Sheng et al., "Fairness in Serving Large Language Models", OSDI '24 (arXiv 2401.00588), algorithm 2:
a counter per user grows by 1 for each prompt token and by 2 for each generated one; prefix hits
cost nothing. A user whose queue was empty is lifted to the smallest counter of those who wait, or
else to that of the user who was admitted last. The service of two backlogged users differs by at
most 2 max(w_p L, w_q M) with prompts of up to L tokens and M tokens of KV memory.

The router shares its queue between users by the same counters (`cost`, `lift`).

Within a user, the end users take turns. O(n + k log n) of n waiting requests, k of which are
chosen. Without a queue, or with one user, it does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

from scheduling.composed import Attained, Order
from seams import Request, Served, View

PROMPT_TOKEN, GENERATED_TOKEN = 1.0, 2.0


def cost(prompt_tokens: float, generated_tokens: float) -> float:
    return PROMPT_TOKEN * prompt_tokens + GENERATED_TOKEN * generated_tokens


def lift(served: Attained, user: Hashable, least: Hashable | None) -> None:
    """A user without waiting requests is about to have one: what was not asked for before does not
    count. `least`: of those who wait the one served least, or else the last who waited; None if
    there was none."""
    if least is not None:
        served.raise_to(user, served.get(least, 0.0))


class VTC(Order):
    def __init__(self) -> None:
        super().__init__()
        self.served = Attained()  # by user
        self._prompts = Attained()  # requests whose prompts were charged
        self._admitted: int | None = None  # the user whose request was admitted last
        self._chosen: dict[int, float] = {}  # by user: what the present plan is about to add
        self._newest_turn = Attained()  # by user, and by user and end user
        self._turns = Attained()  # by request

    def group(self, request: Request) -> int:
        return request.user

    def group_rank(self, group: int) -> float:
        return self.served.get(group, 0.0) + self._chosen.get(group, 0.0)

    def ranks(self, queue: Sequence[Request]) -> Sequence[float]:
        """The turns of a user's requests: start-time fair queueing of its end users, with requests
        of equal cost (Goyal et al., SIGCOMM '96). A request keeps its turn when it is preempted,
        and its end user does not get back the turn of one that is cancelled."""
        known = [self._turns[r.id] for r in queue if r.id in self._turns]
        first = min(known, default=None)
        turns = []
        for request in queue:
            turn = self._turns.get(request.id)
            if turn is None:
                user, own = request.user, (request.user, request.end_user)
                now = self._newest_turn.get(user, 0.0) if first is None else first
                turn = max(self._newest_turn.get(own, 0.0) + 1, now)
                first = turn if first is None else first
                self._newest_turn.raise_to(own, turn)
                self._newest_turn.raise_to(user, turn)
                self._turns.raise_to(request.id, turn)
            turns.append(turn)
        return turns

    def first(self, view: View, most: int) -> list[Request]:
        admitted = [r.user for r in view.resident if r.id in self.waited]
        self._admitted = admitted[-1] if admitted else self._admitted
        return super().first(view, most)

    def joined(self, groups: Sequence[int], waiting: Collection[int]) -> None:
        least = min(waiting, key=self.group_rank, default=self._admitted)
        for user in groups:
            lift(self.served, user, least)
            least = least if waiting else groups[0]  # which waits now

    def choose(self, request: Request, view: View) -> None:
        more = cost(request.known - view.memory.hit_tokens(request), 0)
        self._chosen[request.user] = self._chosen.get(request.user, 0.0) + more

    def forget_choices(self) -> None:
        self._chosen.clear()

    def observe(self, rows: Iterable[Served]) -> None:
        for request, _, generated in rows:
            prompt = 0
            if request.id in self.waited:
                self._admitted = request.user
            if request.id not in self._prompts:
                prompt = request.prompt_tokens - (request.cached_tokens or 0)
            self._prompts.raise_to(request.id, 1)  # the longest idle are forgotten
            self.served.add(request.user, cost(prompt, generated))
