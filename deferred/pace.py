"""How the jobs' threads share the interpreter with the threads of immediate requests: in short
bursts, each followed by a rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

RESTS = 4  # times as long as was worked: a fifth of a processor, of which the interpreter has one


class Pace:
    """Of one thread, in which all is called but `stop`."""

    def __init__(self, hurried: Callable[[], bool]) -> None:
        """`hurried`: whether other threads need the interpreter."""
        self._hurried = hurried
        self._stopped = threading.Event()
        self._rested_s = 0.0  # by this thread's processor time

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def hurried(self) -> bool:
        return self._hurried()

    def stop(self) -> None:
        """Ends this rest and all to come."""
        self._stopped.set()

    def rest(self, least_s: float = 0.0) -> None:
        """As much as this thread has worked since the last rest asks for."""
        rest_s = least_s
        if self._hurried():
            rest_s = max(least_s, RESTS * (time.thread_time() - self._rested_s))
        if rest_s > 0:
            self._stopped.wait(rest_s)
        self._rested_s = time.thread_time()
