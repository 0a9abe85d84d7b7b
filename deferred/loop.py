"""The loop of a thread that works on stored jobs. It leaves the interpreter to immediate requests:
it works in short bursts, each followed by a rest."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

RESTS = 4  # rest per work: a thread gets a fifth of the one core that the interpreter uses
ERROR_S = 1.0  # wait after an internal error


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """`names`: the model's; batches store the first. `window`: most requests in the engine at a
    time. `retention_s`: how long an ended batch is kept. `hurried`: whether immediate requests need
    the interpreter. `worker`: unique to this process."""

    names: Sequence[str]
    window: int
    most_line_bytes: int
    retention_s: float
    hurried: Callable[[], bool]
    worker: str = field(default_factory=_worker)


class StoppedError(Exception):
    """The server stops during a turn. What the turn began can be repeated."""


class Loop(ABC):
    """`wake` and `stop` may be called from any thread; all else belongs to the thread of `run`."""

    name: str  # of its thread
    least_rest_s = 0.0  # between two turns

    def __init__(self, options: JobOptions) -> None:
        self.thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self.options = options
        self.wakeup = threading.Event()
        self._stopping = threading.Event()
        self._rested_s = 0.0  # this thread's CPU time at the end of its last rest

    @abstractmethod
    def turn(self) -> float:
        """Does what is due. Returns the seconds until the next turn, if nothing wakes it earlier.
        Raises StoppedError."""

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    def wake(self) -> None:
        self.wakeup.set()

    def stop(self) -> None:
        """Ends the current wait and rest and skips later ones; `run` ends soon."""
        self._stopping.set()
        self.wakeup.set()

    def run(self) -> None:
        while not self.stopped:
            try:
                wait_s = self.turn()
            except StoppedError:
                return
            except Exception:  # an internal error must not end all jobs
                log.exception("internal error in the %s; it continues", type(self).__name__.lower())
                wait_s = ERROR_S
            self.wakeup.wait(wait_s)
            self.wakeup.clear()
            self.rest(self.least_rest_s)

    def rest(self, least_s: float = 0.0) -> None:
        """Rests in proportion to the work since the last rest, if immediate requests need the
        interpreter."""
        rest_s = least_s
        if self.options.hurried():
            rest_s = max(least_s, RESTS * (time.thread_time() - self._rested_s))
        if rest_s > 0:
            self._stopping.wait(rest_s)
        self._rested_s = time.thread_time()
