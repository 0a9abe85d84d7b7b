"""The waiting requests of one model and class, and whose turn it is. Pure.

The most urgent priority first, then the user who was served least, by the counters of the engine's
`vtc` (see scheduling/policies/orders/vtc.py), then by arrival. A user is charged what a request is
expected to cost when it gets its place, and the difference when it ends. Where all have the same
priority and user: first in, first out.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Set

from router.rules.request import RoutedRequest
from scheduling.composed import Attained
from scheduling.policies.orders.vtc import cost, lift

Line = tuple[int, str]  # priority, user; its requests keep their order
Rank = tuple[int, float]  # the lowest is the first; of equal ones the first that arrived


class Fair:
    """The turns of users who wait."""

    def __init__(self) -> None:
        self._served = Attained()
        self._waiting = Counter[str]()  # requests, by user
        self._last_left: str | None = None

    def rank(self, line: Line) -> Rank:
        priority, user = line
        return priority, self._served.get(user, 0.0)

    def came(self, request: RoutedRequest) -> None:
        """It is about to wait."""
        user = request.user
        if user not in self._waiting:
            least = min(self._waiting, key=lambda u: self._served.get(u, 0.0), default=None)
            lift(self._served, user, self._last_left if least is None else least)
        self._waiting[user] += 1

    def went(self, request: RoutedRequest) -> None:
        """It waits no longer."""
        self._waiting[request.user] -= 1
        if not self._waiting[request.user]:
            del self._waiting[request.user]
            self._last_left = request.user

    def placed(self, request: RoutedRequest) -> None:
        self._served.add(request.user, request.work.total)

    def ended(self, request: RoutedRequest) -> None:
        """On its server."""
        self._served.add(request.user, cost(*request.work.spent) - request.work.total)


class Queue:
    """By arrival, and by turns."""

    def __init__(self, fair: Fair) -> None:
        self._fair = fair
        self._requests: dict[int, RoutedRequest] = {}  # by sequence number, oldest first
        self._lines: dict[Line, dict[int, RoutedRequest]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RoutedRequest]:
        """The oldest first."""
        return iter(list(self._requests.values()))

    @property
    def oldest(self) -> RoutedRequest:
        return next(iter(self._requests.values()))

    def add(self, request: RoutedRequest) -> None:
        self._fair.came(request)
        line = (request.priority, request.user)
        self._requests = _added(self._requests, request)
        self._lines[line] = _added(self._lines.get(line, {}), request)

    def remove(self, request: RoutedRequest) -> bool:
        """Returns whether it was there."""
        if self._requests.pop(request.seq, None) is None:
            return False
        line = (request.priority, request.user)
        del self._lines[line][request.seq]
        if not self._lines[line]:
            del self._lines[line]
        self._fair.went(request)
        return True

    def in_turn(self, closed: Set[str]) -> Iterator[tuple[Rank, int, RoutedRequest]]:
        """With ranks and sequence numbers, until its model is `closed`. Those that are placed
        meanwhile change the turns of the others; the queue itself must not change."""
        heads = []
        for line, requests in self._lines.items():
            following = iter(requests.values())
            first = next(following)
            heads.append((self._fair.rank(line), first.seq, first, line, following))
        heapq.heapify(heads)
        while heads:
            rank, seq, request, line, following = heads[0]
            if (now := self._fair.rank(line)) != rank:
                heapq.heapreplace(heads, (now, seq, request, line, following))
                continue
            yield rank, seq, request
            if request.model in closed:
                return
            if (later := next(following, None)) is None:
                heapq.heappop(heads)
            else:
                rank = self._fair.rank(line)
                heapq.heapreplace(heads, (rank, later.seq, later, line, following))


def _added(queue: dict[int, RoutedRequest], request: RoutedRequest) -> dict[int, RoutedRequest]:
    """A retried request returns to its old place: rare, so sorting is cheap."""
    in_order = not queue or next(reversed(queue)) < request.seq
    queue[request.seq] = request
    return queue if in_order else dict(sorted(queue.items()))
