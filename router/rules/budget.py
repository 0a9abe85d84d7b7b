"""The retry budget of one upstream. Pure: callers pass the time.

Of the requests first sent to an upstream within the last `WINDOW_S` seconds, a fifth may be sent
again elsewhere, and beyond that ten, or twice as many as it serves at once: if it dies, all of
these have to be sent again, and so have those that took their places meanwhile. If everything
fails, the fleet sees about 1.2 times the load instead of a multiple (the idea is Finagle's
`RetryBudget`).
"""

from collections import deque
from dataclasses import dataclass, field
from math import floor

WINDOW_S = 10
RATIO = 0.2
FLOOR = 10


@dataclass(slots=True, eq=False)
class RetryBudget:
    """Counts in buckets of one second, so that its memory does not grow with the load."""

    _buckets: deque[list[int]] = field(default_factory=deque)  # [second, sent, retries]
    _sent: int = 0
    _retries: int = 0

    def sent(self, now: float) -> None:
        """Counts a request that was sent to the upstream first, not as a retry."""
        self._bucket(now)[1] += 1
        self._sent += 1

    def withdraw(self, now: float, places: int) -> bool:
        """Takes one retry from the budget. Returns False if the budget is spent. `places`: the
        requests that the upstream serves at once."""
        bucket = self._bucket(now)
        if self._retries >= RATIO * self._sent + max(FLOOR, 2 * places):
            return False
        bucket[2] += 1
        self._retries += 1
        return True

    def _bucket(self, now: float) -> list[int]:
        second = floor(now)
        if not self._buckets or self._buckets[-1][0] != second:
            self._buckets.append([second, 0, 0])
        while self._buckets[0][0] <= second - WINDOW_S:
            _, sent, retries = self._buckets.popleft()
            self._sent -= sent
            self._retries -= retries
        return self._buckets[-1]
