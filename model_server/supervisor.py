"""Starts processes, restarts those that die or hang, and ends all in order.

Processes of a group are of no use without each other, such as the shards of a model: when one dies
or hangs, all of them are restarted. If this process is killed, its children end: their standard
input is a pipe that only this process, and those with `keeps_others`, hold open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

log = logging.getLogger(__name__)

REFUSED = 1  # status when a process ended before it was ever ready: another start would fail, too
BEAT_S, STARTING_BEAT_S = 1.0, 0.1
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 10.0  # before a restart
LAST_LINES_S = 1.0  # a process's own children may keep its output open
MOST_LINE_BYTES = 2**20

IsReady = Callable[[], bool]
TakeLine = Callable[[str, str], None]  # the process's name, a line of its output


class SilentError(Exception):
    """A process does not answer; the message says how."""


@dataclass(frozen=True, slots=True)
class Command:
    """What runs as a process. `probe` opens a function that returns whether the process is ready,
    and raises SilentError if it does not answer. With `keeps_others` the process outlives a killed
    supervisor until it has ended in order, and the other groups with it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    probe: Callable[[], contextlib.AbstractContextManager[IsReady]]
    keeps_others: bool = False


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """`programs` describes the processes of the next life. `end_within_s`: the time that they have
    after SIGTERM."""

    programs: Callable[[], Sequence[Command]]
    end_within_s: float


@dataclass(slots=True, eq=False)
class _Supervised:
    group: ProcessGroup
    life: _Life | None = None
    ready_once: bool = False
    pause_s: float = FIRST_PAUSE_S
    start_at_s: float = 0.0  # of the next life


@dataclass(slots=True, eq=False)
class _Life:
    """A group's processes between a start and the end."""

    of: _Supervised
    processes: list[_Process] = field(default_factory=list)
    was_ready: bool = False  # one of them


@dataclass(frozen=True, slots=True)
class _Process:
    life: _Life
    program: Command
    popen: subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class _Loss:
    """Why a life is over."""

    life: _Life
    why: str
    final: bool = False


class Supervisor:
    """Starts groups in the given order and ends them in the opposite one. `take_line` gets the
    output of all processes; without it they write where this process does."""

    def __init__(self, groups: Sequence[ProcessGroup], take_line: TakeLine | None = None) -> None:
        self._all = [_Supervised(group) for group in groups]
        self._take_line = take_line
        self._losses: queue.SimpleQueue[_Loss | None] = queue.SimpleQueue()
        self._kept_by, self._keeping = os.pipe()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Those of the present lives, by group."""
        return [process.popen for one in self._all if one.life for process in one.life.processes]

    def stop(self) -> None:
        """Makes `run` end all processes and return. May be called in a signal handler."""
        self._losses.put(None)

    def run(self) -> int:
        """Runs until it is stopped, or a process ends by itself before its group was ever ready;
        returns the exit status. On Linux, processes with `keeps_others` end with the thread that
        calls it."""
        try:
            while True:
                for one in self._all:
                    if one.life is None and one.start_at_s <= time.monotonic():
                        self._start(one)
                try:
                    loss = self._losses.get(timeout=self._until_a_start_s())
                except queue.Empty:
                    continue
                if loss is None:
                    return 0
                if loss.life is not loss.life.of.life:
                    continue  # of an earlier life
                if loss.final:
                    log.error("%s before it was ready; its last lines say why", loss.why)
                    return REFUSED
                self._lose(loss)
        finally:
            for one in reversed(self._all):
                self._end(one, signal.SIGTERM)
            os.close(self._kept_by)
            os.close(self._keeping)

    def _until_a_start_s(self) -> float | None:
        due = [one.start_at_s for one in self._all if one.life is None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _lose(self, loss: _Loss) -> None:
        one = loss.life.of
        one.pause_s = pause_after(one.pause_s, loss.life.was_ready)
        one.start_at_s = time.monotonic() + one.pause_s
        names = ", ".join(process.program.name for process in loss.life.processes)
        log.warning("%s; restarted in %g s: %s", loss.why, one.pause_s, names)
        self._end(one, signal.SIGKILL)

    def _start(self, one: _Supervised) -> None:
        one.life = life = _Life(one)
        for program in one.group.programs():
            process = _Process(life, program, self._popen(program))
            life.processes.append(process)
            log.info("%s started, pid %d", program.name, process.popen.pid)
            for watch in (self._await_end, self._await_silence):
                threading.Thread(target=watch, args=(process,), daemon=True).start()

    def _popen(self, program: Command) -> subprocess.Popen[bytes]:
        relayed = self._take_line is not None
        return subprocess.Popen(
            _tied(program.command) if program.keeps_others else program.command,
            env=program.environment,
            stdin=subprocess.DEVNULL if program.keeps_others else self._kept_by,
            stdout=subprocess.PIPE if relayed else None,
            stderr=subprocess.STDOUT if relayed else None,
            pass_fds=[self._keeping] if program.keeps_others else [],
            start_new_session=True,  # Ctrl-C is for this process, which ends them in order
        )

    def _end(self, one: _Supervised, number: signal.Signals) -> None:
        """Sends the signal, and SIGKILL to what is left of each process's group after the limit."""
        if one.life is None:
            return
        processes, one.life = one.life.processes, None
        within_s = one.group.end_within_s
        for process in processes:
            if number == signal.SIGTERM and process.popen.poll() is None:
                log.info("%s is asked to end within %g s", process.program.name, within_s)
            process.popen.send_signal(number)
        deadline_s = time.monotonic() + within_s
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline_s - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()

    def _await_end(self, process: _Process) -> None:
        life, name, popen = process.life, process.program.name, process.popen
        relay = threading.Thread(target=self._relay, args=(name, popen.stdout), daemon=True)
        relay.start()
        status = popen.wait()
        relay.join(LAST_LINES_S)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        final = status >= 0 and not life.of.ready_once
        self._losses.put(_Loss(life, f"{name} ended with {how}", final))

    def _relay(self, name: str, output: IO[bytes] | None) -> None:
        if output is None or self._take_line is None:
            return
        with output:
            while line := output.readline(MOST_LINE_BYTES):
                self._take_line(name, line.decode(errors="replace").rstrip("\n"))

    def _await_silence(self, process: _Process) -> None:
        was_ready = False
        with process.program.probe() as is_ready:
            while process.popen.poll() is None:
                ready = False
                try:
                    ready = is_ready()
                except SilentError as error:
                    if was_ready:
                        self._losses.put(_Loss(process.life, f"{process.program.name} {error}"))
                        return
                if ready:
                    was_ready = process.life.was_ready = process.life.of.ready_once = True
                time.sleep(BEAT_S if ready else STARTING_BEAT_S)


def pause_after(pause_s: float, was_ready: bool) -> float:
    """Seconds before the next restart: twice the last pause after a start that failed. Processes
    that were ready are restarted at once, however often they die: requests wait for them."""
    return FIRST_PAUSE_S if was_ready else min(pause_s * 2, MOST_PAUSE_S)


# 1 is PR_SET_PDEATHSIG (linux/prctl.h). If the supervisor died before that call, it is no longer
# the parent, and the child ends. This is a separate program, since nothing may run between fork and
# exec in a process with threads.
_TIED = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.getppid() == int(sys.argv[1]) or sys.exit(0);"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def _tied(command: Sequence[str]) -> Sequence[str]:
    """A command whose process receives SIGTERM, on Linux, when this process dies for any reason."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
