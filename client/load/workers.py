"""The processes that send: they do nothing else, so that nothing else delays a send.

One is enough for most servers; several share the requests of a run among them and begin at the same
instant of the machine's clock. They are forked, which takes milliseconds where imports would take
half a second, live as long as their crew, and receive their work over a pipe each.
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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Self

from client.load.http.exchange import Progress
from client.load.http.target import Target
from client.load.play import SILENCE_S, Watcher, play
from client.load.records import Run
from client.workloads.workload_file import Workload

_TOLD_S = 0.25  # between two messages of a process about its progress
_HEAD_START_S = 0.02
_FORKING = multiprocessing.get_context("fork")


class WorkerError(RuntimeError):
    """A process of the client that ended before it was done."""


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    channel: Connection

    def tell(self, message: Any) -> None:
        with self._alive():
            self.channel.send(message)

    def hear(self) -> Any:
        with self._alive():
            return self.channel.recv()

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            raise WorkerError(f"a process of the client ended with status {status}") from None

    def interrupt(self) -> None:
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGINT)


class Crew:
    """``workers`` processes while the block lasts, on ``cores`` if they have their own."""

    def __init__(self, workers: int = 1, cores: Collection[int] | None = None) -> None:
        self._size, self._cores = workers, cores
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        self._workers = [_begin(self._cores) for _ in range(self._size)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.channel.close()
            worker.process.kill()
            worker.process.join()
        self._workers = []

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
        """Like `play`; without a ``name`` the run gets a random one. Raises WorkerError."""
        name = secrets.token_hex(4) if name is None else name
        most = len(workload.requests) if workload.users is None else workload.users
        if workload.chained:  # a process sees the end of its own requests only
            most = 1
        busy = self._workers[: max(1, min(self._size, most))]
        for number, worker in enumerate(busy):
            part = number, len(busy)
            worker.tell(
                partial(
                    play, workload, target, drain_s=drain_s, silence_s=silence_s, name=name,
                    part=part,
                )
            )  # fmt: skip
        with _interrupting(busy):
            return _merged(workload, _heard(busy, watch, len(workload.requests)))


def _begin(cores: Collection[int] | None) -> _Worker:
    ours, its = _FORKING.Pipe()
    process = _FORKING.Process(target=_serve, args=(its, cores), name="client", daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns if there are threads; the process waits for none of their locks
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    its.close()
    return _Worker(process, ours)


@contextlib.contextmanager
def _interrupting(busy: Sequence[_Worker]) -> Iterator[None]:
    """An interrupt of this process ends the run in the sending processes and keeps their
    records."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    passed: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if not passed:  # a second one would cost the records
            for worker in busy:
                worker.interrupt()
        passed.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.getsignal(n) for n in numbers}
    theirs = {n for n, handler in before.items() if handler is signal.default_int_handler}
    for number in theirs:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in theirs:
            signal.signal(number, before[number])


def _heard(busy: Sequence[_Worker], watch: Watcher | None, planned: int) -> list[Run]:
    """Lets all begin once each is ready, and receives messages until each has sent its part."""
    parts: dict[int, Run] = {}
    reported = [Progress(0) for _ in busy]
    ready = 0
    numbers = {worker.channel: number for number, worker in enumerate(busy)}
    while len(parts) < len(busy):
        for channel in wait([w.channel for n, w in enumerate(busy) if n not in parts]):
            number = numbers[channel]  # type: ignore[index]
            message = busy[number].hear()
            if isinstance(message, Run):
                parts[number] = message
            elif isinstance(message, Progress):
                reported[number] = message
                if watch is not None:
                    watch(_together(reported, planned))
            else:
                ready += 1
                if ready == len(busy):
                    start = time.monotonic() + _HEAD_START_S
                    for worker in busy:
                        worker.tell(start)
    return [parts[number] for number in sorted(parts)]


def _together(reported: Sequence[Progress], planned: int) -> Progress:
    return Progress(
        planned,
        sent=sum(p.sent for p in reported),
        done=sum(p.done for p in reported),
        failed=sum(p.failed for p in reported),
        tokens=sum(p.tokens for p in reported),
        elapsed_s=max(p.elapsed_s for p in reported),
        ttfts=[ttft for p in reported for ttft in p.ttfts or ()],
    )


def _merged(workload: Workload, parts: Sequence[Run]) -> Run:
    """One run of the parts."""
    outcomes = sorted((o for part in parts for o in part.outcomes), key=lambda o: o.index)
    return replace(
        parts[0],
        workload=workload,
        outcomes=tuple(outcomes),
        in_flight=_summed([part.in_flight for part in parts]),
        wall_s=max(part.wall_s for part in parts),
        interrupted=next((part.interrupted for part in parts if part.interrupted), None),
    )


def _summed(
    samples: Sequence[Sequence[tuple[float, int]]],
) -> tuple[tuple[float, int], ...]:
    """The sum of the parts' requests in flight, at every sample of any of them."""
    if len(samples) == 1:
        return tuple(samples[0])
    changes = sorted((at_s, part, n) for part, own in enumerate(samples) for at_s, n in own)
    last = [0] * len(samples)
    found = []
    for at_s, part, n in changes:
        last[part] = n
        found.append((at_s, sum(last)))
    return tuple(found)


def _serve(channel: Connection, cores: Collection[int] | None) -> None:
    """In the process: sends the parts that it receives until its crew is gone."""
    os.setsid()  # a Ctrl-C reaches it through its crew, and once
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    gc.freeze()  # objects of the crew are not garbage of this process
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            run = _play(channel, channel.recv())
            # the crew has the workload
            channel.send(replace(run, workload=replace(run.workload, requests=())))


def _play(channel: Connection, task: partial[Run]) -> Run:
    told_s = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told_s
        if progress.elapsed_s - told_s >= _TOLD_S or progress.done == progress.planned:
            told_s = progress.elapsed_s
            channel.send(replace(progress, ttfts=(progress.ttfts or [])[-500:]))

    def begin() -> float:
        channel.send("ready")
        start: float = channel.recv()
        return start

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return task(watch=tell, begin=begin)
    except KeyboardInterrupt:  # before it had begun
        workload, target = task.args
        never = Run.never_begun(target.name, workload, "interrupted")
        return replace(never, interrupted="interrupted from the keyboard", not_begun=None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
