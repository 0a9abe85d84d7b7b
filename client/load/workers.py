"""The processes that send: they do nothing else, so that nothing else delays a send.

One is enough for most servers; several share the requests of a run among them and begin at the same
instant of the machine's clock. They are forked, which takes milliseconds where imports would take
half a second, and live as long as their crew, since the first run of a process is its slowest. They
receive their work over a pipe each, and write their progress into memory that the crew shares.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import secrets
import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from ctypes import memset, sizeof
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Self

from client.load.http.exchange import Progress
from client.load.http.target import Target
from client.load.play import SILENCE_S, play
from client.load.records import Run
from client.workloads.workload_file import Workload

Watcher = Callable[[Progress], None]
_WATCHED_S = 0.25  # between two looks at the progress
_HEAD_START_S = 0.02
_FORKING = multiprocessing.get_context("fork")


class WorkerError(RuntimeError):
    """A process of the client that ended before it was done."""


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    channel: Connection

    def hear(self) -> Any:
        try:
            return self.channel.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            raise WorkerError(f"a process of the client ended with status {status}") from None


class Crew:
    """``workers`` processes while the block lasts, on ``cores`` if they have their own."""

    def __init__(self, workers: int = 1, cores: Collection[int] | None = None) -> None:
        self._cores, self._workers = cores, list[_Worker]()
        self._progress = _FORKING.RawArray(Progress, workers)
        self._stopped = _FORKING.RawValue("b")

    def __enter__(self) -> Self:
        for progress in self._progress:
            self._workers.append(self._forked(progress))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.channel.close()
            worker.process.kill()
            worker.process.join()
        self._workers = []

    def _forked(self, progress: Progress) -> _Worker:
        ours, its = _FORKING.Pipe()
        inherited = [ours, *(worker.channel for worker in self._workers)]
        process = _FORKING.Process(
            target=_serve, name="client", daemon=True,
            args=(its, inherited, self._cores, progress, self._stopped),
        )  # fmt: skip
        with warnings.catch_warnings():
            # Python 3.12 warns if there are threads; the process waits for none of their locks
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        its.close()
        return _Worker(process, ours)

    def play(
        self,
        workload: Workload,
        target: Target,
        *,
        drain_s: float | None = None,
        silence_s: float = SILENCE_S,
        watch: Watcher | None = None,
        name: str | None = None,
    ) -> Run:
        """Like `play`; without a ``name`` the run gets a random one. An interrupt of this process
        ends the run and keeps its records. Raises WorkerError."""
        most = len(workload.requests) if workload.users is None else workload.users
        if workload.chained:  # a process sees the end of its own requests only
            most = 1
        busy = self._workers[: max(1, min(len(self._workers), most))]
        task = partial(
            play, workload, target, drain_s=drain_s, silence_s=silence_s,
            name=name or secrets.token_hex(4),
        )  # fmt: skip
        memset(self._progress, 0, sizeof(self._progress))
        self._stopped.value = 0
        with _flagged(self._stopped):
            self._tell(busy, [partial(task, part=(n, len(busy))) for n in range(len(busy))])
            for worker in busy:
                worker.hear()  # it is ready
            self._tell(busy, [time.monotonic() + _HEAD_START_S] * len(busy))
            parts = list[Run]()
            left: dict[Any, _Worker] = {worker.channel: worker for worker in busy}
            while left:
                for channel in wait([*left], _WATCHED_S):
                    parts.append(left.pop(channel).hear())
                if watch is not None:
                    watch(Progress.together(self._progress))
        return _merged(workload, parts)

    def _tell(self, busy: Sequence[_Worker], messages: Sequence[Any]) -> None:
        for worker, message in zip(busy, messages, strict=True):
            with contextlib.suppress(OSError):  # it has ended, which is heard next
                worker.channel.send(message)


def _serve(
    channel: Connection,
    inherited: Sequence[Connection],
    cores: Collection[int] | None,
    progress: Progress,
    stopped: Any,
) -> None:
    """In the process, which hears of interrupts from its crew only, and ends with it, even if
    it was killed: so it closes the crew's ends of channels, which it has ``inherited``.

    A client that waits for a core measures itself, so it comes first where the system allows that;
    and the collector, which would stop it for tens of milliseconds, is off, since a run makes no
    garbage cycles."""
    crew = os.getppid()
    os.setsid()
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    with contextlib.suppress(PermissionError):  # requires root or CAP_SYS_NICE
        os.nice(-10)
    gc.freeze()  # objects of the crew are not garbage of this process
    gc.disable()

    def begin() -> float:
        channel.send("ready")
        start: float = channel.recv()
        return start

    def ends() -> bool:
        return bool(stopped.value) or os.getppid() != crew

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task: Callable[..., Run] = channel.recv()
            gc.collect()
            run = task(begin=begin, progress=progress, stopped=ends)
            # the crew has the workload
            channel.send(replace(run, workload=replace(run.workload, requests=())))


@contextlib.contextmanager
def _flagged(stopped: object) -> Iterator[None]:
    """Interrupts set the flag, however many come: an exception would cost the records."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.getsignal(n) for n in numbers}
    ours = [n for n, handler in before.items() if handler is signal.default_int_handler]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, lambda *_: setattr(stopped, "value", 1))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _merged(workload: Workload, parts: Sequence[Run]) -> Run:
    """One run of the parts."""
    outcomes = sorted((o for part in parts for o in part.outcomes), key=lambda o: o.index)
    return replace(
        parts[0],
        workload=workload,
        outcomes=tuple(outcomes),
        wall_s=max(part.wall_s for part in parts),
        interrupted=next((part.interrupted for part in parts if part.interrupted), None),
    )
