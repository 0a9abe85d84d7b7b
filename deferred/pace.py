"""Leaves the interpreter to immediate requests: the jobs' threads work in short bursts, each
followed by a rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

RESTS = 4  # rest per work: a thread gets a fifth of the one core that the interpreter uses


class Pace:
    """The pace of one thread. Only `stop` may be called from another one."""

    def __init__(self, hurried: Callable[[], bool]) -> None:
        """`hurried`: whether other threads need the interpreter."""
        self._hurried = hurried
        self._stopped = threading.Event()
        self._rested_s = 0.0  # this thread's CPU time at the end of its last rest

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def hurried(self) -> bool:
        return self._hurried()

    def stop(self) -> None:
        """Ends the current rest and skips later ones."""
        self._stopped.set()

    def rest(self, least_s: float = 0.0) -> None:
        """Rests in proportion to the work since the last rest, if other threads need the
        interpreter."""
        rest_s = least_s
        if self._hurried():
            rest_s = max(least_s, RESTS * (time.thread_time() - self._rested_s))
        if rest_s > 0:
            self._stopped.wait(rest_s)
        self._rested_s = time.thread_time()
