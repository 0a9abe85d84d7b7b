"""Servers in processes of their own, while a benchmark needs them."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from client.load.machine import ROOT
from client.load.servers.processes import launched

START_S = 300.0
USERS = ("EB_", "API_KEY", "UPSTREAMS", "TIB_", "LD_PRELOAD")  # settings that change a server


def cleared(variables: Mapping[str, str], *also: str) -> list[str]:
    """The beginning of a command that runs with these variables and without the user's settings,
    those whose names begin with ``also`` included."""
    unset = [f"--unset={name}" for name in os.environ if name.startswith((*USERS, *also))]
    return ["env", *unset, *(f"{name}={value}" for name, value in variables.items())]


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def serving(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    *,
    port: int | None = None,
    ready: Callable[[str], bool] = healthy,
    cwd: Path = ROOT,
) -> Iterator[str]:
    """Runs ``command --port P``; its URL, once ``ready`` says so of it. RuntimeError, with the end
    of its log, if it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        whole = ["env", f"--chdir={cwd.resolve()}", *cleared(variables or {}), *command]
        with launched(whole, "server", Path(folder) / "log", port=port) as started:
            url, process = started.target.url, started.process
            give_up_s = time.monotonic() + START_S
            while not ready(url):
                if process is None or process.poll() is not None or time.monotonic() > give_up_s:
                    raise RuntimeError(f"{' '.join(command)}: {started.failure()}")
                time.sleep(0.1)
            yield url


def served(mode: str, model: str, limit: int, *options: str) -> AbstractContextManager[str]:
    """`./server.sh MODE` by this Python, with this batch limit; its URL."""
    named = "--model-id" if mode == "launcher" else "--model"
    command = [str(ROOT / "server.sh"), mode, named, model, "--max-batch-size", str(limit)]
    return serving([*command, *options], {"EB_PYTHON": sys.executable})


def server(model: str, dtype: str, limit: int, *options: str) -> AbstractContextManager[str]:
    """The dynamic mode under the policy `orca`, as the bare loop."""
    own = ("--dtype", dtype, "--prefix-caching", "false", "--policy", "orca")
    return served("dynamic", model, limit, *own, *options)
