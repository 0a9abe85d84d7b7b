"""Servers in processes of their own, while a benchmark needs them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0
END_S = 60.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def server(model: str, dtype: str, limit: int, *options: str) -> Iterator[str]:
    """`./server.sh dynamic --policy orca`, as the bare loop, on a free port; its URL."""
    port = free_port()
    command = [
        str(ROOT / "server.sh"), "dynamic", "--port", str(port), "--model", model,
        "--dtype", dtype, "--max-batch-size", str(limit), "--prefix-caching", "false",
        "--policy", "orca",
        *options,
    ]  # fmt: skip
    # the user's environment must not change the measured server
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EB_") and name != "API_KEY"
    }
    with serving(command, environment | {"EB_PYTHON": sys.executable}, port):
        yield f"http://127.0.0.1:{port}"


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def serving(
    command: Sequence[str],
    environment: Mapping[str, str],
    port: int,
    ready: Callable[[str], bool] = healthy,
    cwd: str | None = None,
) -> Iterator[int]:
    """Runs a server; its process id, once ``ready`` says so of its URL.

    RuntimeError, with the end of its log, if it does not start.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            deadline_s = time.monotonic() + START_S
            while not ready(f"http://127.0.0.1:{port}"):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    said = log.read()[-2000:]
                    raise RuntimeError(f"{' '.join(command)} did not start:\n{said}")
                time.sleep(0.1)
            yield process.pid
        finally:
            alive = process.poll() is None
            started = psutil.Process(process.pid).children(True) if alive else []
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            psutil.wait_procs(started, END_S)
