"""Refusals are paced: a client that causes many soon waits for each, so that clients that repeat
requests in error leave the server to others."""

from __future__ import annotations

import time
from collections.abc import Callable

PER_S = 20.0  # refusals of one address
AT_ONCE = 20  # that are not late
MOST_LATE_S = 5.0
MOST_ADDRESSES = 4096
UNPACED = (408, 429)  # its client has waited, or is not at fault


def is_paced(status: int) -> bool:
    return 400 <= status < 500 and status not in UNPACED


class Pace:
    """For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid_s: dict[str, float] = {}  # when an address's refusals count no more

    def late_s(self, address: str) -> float:
        """The seconds by which a further refusal of this address is to be late."""
        now_s, ahead_s = self._clock(), AT_ONCE / PER_S
        paid_s = max(now_s, self._paid_s.pop(address, 0.0)) + 1 / PER_S
        self._paid_s[address] = paid_s = min(paid_s, now_s + ahead_s + MOST_LATE_S)
        if len(self._paid_s) > MOST_ADDRESSES:
            del self._paid_s[next(iter(self._paid_s))]
        return max(0.0, paid_s - now_s - ahead_s)
