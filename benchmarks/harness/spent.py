"""The time that a thread spends within some functions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Spent:
    """Seconds by name, of all calls so far."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock

    def over(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = self._clock()
            result = function(*args, **kwargs)
            self.seconds[name] += self._clock() - start_s
            return result

        return timed
