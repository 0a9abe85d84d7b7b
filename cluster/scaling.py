"""How many servers there should be, by the requests that wait at the router. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

UP_AFTER_S = 3.0  # of requests that wait without a break
DOWN_AFTER_S = 60.0  # in which one server fewer would have been enough
SPARE = 0.8  # of the places of the servers that stay: one more request must not start one again


@dataclass(slots=True)
class Scaling:
    """From `least` to `most` servers; each serves `places` requests at once.

    More at once while requests wait, since all places are taken then; fewer one by one, after a
    long calm, since a server that is started again must load its model."""

    least: int
    most: int
    places: int
    _waiting_since_s: float | None = None
    _calm_since_s: float | None = None

    def wanted(self, now_s: float, present: int, ready: int, waiting: int, running: int) -> int:
        """The number of servers from now on. `present` ones are started, `ready` ones answer;
        `waiting` and `running` are the router's requests."""
        if present < self.least:
            return self.least
        self._waiting_since_s = _since(self._waiting_since_s, now_s, waiting > 0)
        fits = waiting == 0 and running <= SPARE * self.places * (present - 1)
        self._calm_since_s = _since(self._calm_since_s, now_s, fits and ready == present)
        if ready < present:  # those that start may be enough
            return present
        if _lasted(self._waiting_since_s, now_s, UP_AFTER_S):
            self._waiting_since_s = None
            return min(self.most, present + math.ceil(waiting / self.places))
        if present > self.least and _lasted(self._calm_since_s, now_s, DOWN_AFTER_S):
            self._calm_since_s = None
            return present - 1
        return present


def _since(began_s: float | None, now_s: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now_s if began_s is None else began_s


def _lasted(since_s: float | None, now_s: float, long_s: float) -> bool:
    return since_s is not None and now_s - since_s >= long_s
