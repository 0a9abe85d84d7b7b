"""The thread that owns the model, and the order of its work. No gRPC, no torch."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class StaleSessionError(Exception):
    """The session was replaced by another one; its sequences are gone."""


class ShardFailedError(Exception):
    """This process cannot continue and must be replaced."""


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    session: int | None
    number: int
    future: Future[Any] = field(default_factory=Future)


class ShardWorker:
    """Any thread submits work; `run` does it. Work of a session is done in the order of its
    numbers, not of its submission."""

    def __init__(self) -> None:
        self.session = 0  # the present one; 0: none yet
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # put is reentrant
        self._early: dict[int, _Job] = {}  # by number: earlier ones are still missing
        self._next = 0

    def ask(self, work: Callable[[], T], session: int | None = None, number: int = 0) -> Future[T]:
        """The future raises StaleSessionError if the session is not the present one. Work of no
        session has no order."""
        job = _Job(work, session, number)
        self._inbox.put(job)
        return job.future

    def begin(self, session: int) -> None:
        """Begins a new session, within `run`. Pending work of the previous one is refused."""
        self.session = session
        early, self._early, self._next = self._early, {}, 0
        for job in early.values():
            self._refuse(job)

    def stop(self) -> None:
        """Makes `run` return after the current work. May be called in a signal handler."""
        self._inbox.put(None)

    def run(self) -> None:
        """Raises ShardFailedError, after the caller of the work has received it."""
        while (job := self._inbox.get()) is not None:
            if job.session is None:
                self._do(job)
            elif job.session != self.session:
                self._refuse(job)
            else:
                self._early[job.number] = job
                while (due := self._early.pop(self._next, None)) is not None:
                    self._next += 1
                    self._do(due)

    def _do(self, job: _Job) -> None:
        try:
            result = job.work()
        except ShardFailedError as error:
            job.future.set_exception(error)
            raise
        except Exception as error:  # passed to the caller, which decides
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _refuse(self, job: _Job) -> None:
        error = StaleSessionError(
            f"session {job.session} is over; the present one is {self.session}"
        )
        job.future.set_exception(error)
