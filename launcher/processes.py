"""A child process of the launcher: its log and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

MOST_LINE_BYTES = 2**20
# 1 is PR_SET_PDEATHSIG (linux/prctl.h). If the launcher died before that call, it is no longer the
# parent, and the child ends. This is a separate program, since nothing may run between fork and
# exec in a process with threads.
_TIED = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.getppid() == int(sys.argv[1]) or sys.exit(0);"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def tied(command: Sequence[str]) -> list[str]:
    """A command whose process receives SIGTERM, on Linux, when the launcher dies for any reason."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]


class Child:
    """Runs in a separate process group: Ctrl-C in a terminal reaches only the launcher, which
    ends its children in order."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: LogLine) -> None:
        self.name = name
        self.started_s = time.monotonic()
        self._process = process
        self._relay = asyncio.create_task(self._relay_log(log))
        self.ended = asyncio.create_task(self._wait(), name=name)

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: LogLine,
        *,
        stdin: int = asyncio.subprocess.DEVNULL,
        holding: Sequence[int] = (),
    ) -> Child:
        """`holding`: file descriptors that the child keeps open."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env=env,
            stdin=stdin,
            pass_fds=holding,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=MOST_LINE_BYTES,
        )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end(self, number: signal.Signals, within_s: float) -> None:
        """Sends the signal, and SIGKILL to the whole group if the child outlives the limit."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        await asyncio.wait([self.ended], timeout=within_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.ended

    async def _wait(self) -> int:
        """The exit status as a shell shows it: 128 plus the number of a signal."""
        status = await self._process.wait()
        # the child's own processes may keep its output open; they must not delay the launcher
        await asyncio.wait([self._relay], timeout=1.0)
        self._relay.cancel()
        return status if status >= 0 else 128 - status

    async def _relay_log(self, log: LogLine) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # beyond the limit; its remainder is read as the next line
                continue
            if not line:
                return
            log(self.name, line.decode(errors="replace").rstrip("\n"))


LogLine = Callable[[str, str], None]  # the child's name, its line


def plain_line(name: str, line: str) -> None:
    print(f"{name} | {line}", flush=True)


def json_line(name: str, line: str) -> None:
    """Prints one JSON object: the child's own with its name, or one with the plain line."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        fields = {"message": line}
    print(json.dumps({"process": name, **fields}), flush=True)
