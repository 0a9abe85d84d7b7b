"""Processes that run a module as `python -m` does, forked from one that has imported it already:
a server's imports cost seconds, which each of the many servers under test would pay for."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_context = multiprocessing.get_context("forkserver")
# none of it may start a thread
_context.set_forkserver_preload(
    ["gunicorn.app.wsgiapp", "tests.support.hash_app", "router.service"]
)


class Forked:
    """Has what the tests use of `subprocess.Popen`. It leads a session of its own; what it writes
    replaces what was in `log_path`."""

    def __init__(
        self, module: str, args: Sequence[str], env: Mapping[str, str], log_path: Path
    ) -> None:
        begun, begins = _context.Pipe(duplex=False)
        self._process = _context.Process(
            target=_run, args=(module, list(args), dict(env), log_path, begins), daemon=True
        )
        self._process.start()
        begins.close()
        with begun:
            begun.recv()  # from here on it has its session, which its end may be sent to
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    module: str, args: list[str], env: dict[str, str], log_path: Path, begins: Connection
) -> None:
    os.setsid()
    os.chdir(ROOT)
    # appended: another process that writes there, too, overwrites none of it
    log_path.write_bytes(b"")
    with log_path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = args
    begins.send(None)
    begins.close()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
