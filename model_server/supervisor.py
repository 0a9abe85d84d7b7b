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

# A command after which a process receives SIGTERM, on Linux, when this one dies for any reason.
# 1 is PR_SET_PDEATHSIG (linux/prctl.h). If the supervisor died before that call, it is no longer
# the parent, and the child ends. This is a separate program, since nothing may run between fork and
# exec in a process with threads.
_TIED = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.getppid() == int(sys.argv[1]) or sys.exit(0);"
    "os.execv(sys.argv[2], sys.argv[2:])"
)

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
    """A group. A life lasts from a start of its processes to their end."""

    group: ProcessGroup
    life: int = 0  # counts the starts
    ready_life: int = 0  # the latest in which a process was ready; 0: none was
    processes: list[tuple[Command, subprocess.Popen[bytes]]] = field(default_factory=list)
    pause_s: float = FIRST_PAUSE_S
    start_at_s: float = 0.0  # of the next life


@dataclass(frozen=True, slots=True)
class _Loss:
    """Why a life is over."""

    of: _Supervised
    life: int
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
        return [popen for one in self._all for _, popen in one.processes]

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
                    if not one.processes and one.start_at_s <= time.monotonic():
                        self._start(one)
                due = [one.start_at_s for one in self._all if not one.processes]
                wait_s = max(0.0, min(due) - time.monotonic()) if due else None
                try:
                    loss = self._losses.get(timeout=wait_s)
                except queue.Empty:
                    continue
                if loss is None:
                    return 0
                if loss.life != loss.of.life or not loss.of.processes:
                    continue  # of a life that has ended
                if loss.final:
                    log.error("%s before it was ready; its last lines say why", loss.why)
                    return REFUSED
                self._lose(loss)
        finally:
            for one in reversed(self._all):
                self._end(one, signal.SIGTERM)
            os.close(self._kept_by)
            os.close(self._keeping)

    def _lose(self, loss: _Loss) -> None:
        """A start that failed doubles the pause before the next one. Processes that were ready are
        restarted at once, however often they die: requests wait for them."""
        one = loss.of
        was_ready = one.ready_life == one.life
        one.pause_s = FIRST_PAUSE_S if was_ready else min(2 * one.pause_s, MOST_PAUSE_S)
        one.start_at_s = time.monotonic() + one.pause_s
        names = ", ".join(program.name for program, _ in one.processes)
        log.warning("%s; restarted in %g s: %s", loss.why, one.pause_s, names)
        self._end(one, signal.SIGKILL)

    def _start(self, one: _Supervised) -> None:
        one.life += 1
        for program in one.group.programs():
            popen = self._popen(program)
            one.processes.append((program, popen))
            log.info("%s started, pid %d", program.name, popen.pid)
            for watch in (self._await_end, self._await_silence):
                args = (one, one.life, program, popen)
                threading.Thread(target=watch, args=args, daemon=True).start()

    def _popen(self, program: Command) -> subprocess.Popen[bytes]:
        relayed, command = self._take_line is not None, program.command
        if program.keeps_others and sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
        return subprocess.Popen(
            command,
            env=program.environment,
            stdin=subprocess.DEVNULL if program.keeps_others else self._kept_by,
            stdout=subprocess.PIPE if relayed else None,
            stderr=subprocess.STDOUT if relayed else None,
            pass_fds=[self._keeping] if program.keeps_others else [],
            start_new_session=True,  # Ctrl-C is for this process, which ends them in order
        )

    def _end(self, one: _Supervised, number: signal.Signals) -> None:
        """Sends the signal, and SIGKILL to what is left of each process's group after the limit."""
        processes, one.processes = one.processes, []
        within_s = one.group.end_within_s
        for program, popen in processes:
            if number == signal.SIGTERM and popen.poll() is None:
                log.info("%s is asked to end within %g s", program.name, within_s)
            popen.send_signal(number)
        deadline_s = time.monotonic() + within_s
        for _, popen in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(max(0.0, deadline_s - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()

    def _await_end(
        self, one: _Supervised, life: int, program: Command, popen: subprocess.Popen[bytes]
    ) -> None:
        relay = threading.Thread(target=self._relay, args=(program.name, popen.stdout), daemon=True)
        relay.start()
        status = popen.wait()
        relay.join(LAST_LINES_S)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        final = status >= 0 and not one.ready_life
        self._losses.put(_Loss(one, life, f"{program.name} ended with {how}", final))

    def _relay(self, name: str, output: IO[bytes] | None) -> None:
        if output is None or self._take_line is None:
            return
        with output:
            while line := output.readline(MOST_LINE_BYTES):
                self._take_line(name, line.decode(errors="replace").rstrip("\n"))

    def _await_silence(
        self, one: _Supervised, life: int, program: Command, popen: subprocess.Popen[bytes]
    ) -> None:
        was_ready = False
        with program.probe() as is_ready:
            while popen.poll() is None:
                ready = False
                try:
                    ready = is_ready()
                except SilentError as error:
                    if was_ready:
                        self._losses.put(_Loss(one, life, f"{program.name} {error}"))
                        return
                if ready:
                    was_ready = True
                    one.ready_life = max(life, one.ready_life)
                time.sleep(BEAT_S if ready else STARTING_BEAT_S)
