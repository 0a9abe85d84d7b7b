"""Starts and stops real servers, and asks any target's side doors. HTTP and processes only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import requests

from client.target import Target, authorization, parse_target

ROOT = Path(__file__).resolve().parent.parent
_STOP_S = 20.0


class ServerError(RuntimeError):
    """A server that did not come up or does not answer; the message holds the end of its log."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def started(
    command: Sequence[str], name: str, log: Path, start_s: float, *, cwd: Path = ROOT
) -> Iterator[Target]:
    """Run ``command --port P`` until the block ends; yields when ``/health`` says 200.

    The server leads a process group of its own, so that nothing of it survives the block, and a
    Ctrl-C in the terminal reaches the caller alone.
    """
    port = free_port()
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=sink, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        try:
            target = parse_target(f"{name}=http://127.0.0.1:{port}")
            _await_health(process, target, log, start_s)
            yield target
        finally:
            _stop(process)


def _await_health(
    process: subprocess.Popen[bytes], target: Target, log: Path, start_s: float
) -> None:
    give_up = time.monotonic() + start_s
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise ServerError(
                f"{target.name}: the server ended with status {process.returncode} before it was "
                f"ready; the end of {log}:\n{_tail(log)}"
            )
        try:
            if requests.get(f"{target.url}/health", timeout=5).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise ServerError(
        f"{target.name}: not ready after {start_s:.0f} s (--start-s); "
        f"the end of {log}:\n{_tail(log)}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, which drains; what is left of the group after a while is killed."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stats(target: Target) -> dict[str, Any] | None:
    """``/stats`` of a native target; None where there is none."""
    return _get(target, "/stats") if target.native else None


def iterations(target: Target) -> dict[str, Any] | None:
    """``/stats/iterations`` of a native target; None where there is none."""
    return _get(target, "/stats/iterations") if target.native else None


def reset_stats(target: Target) -> None:
    """Begin a new window in ``/stats``; a target without one is left alone."""
    if target.native:
        with contextlib.suppress(requests.RequestException):
            requests.post(f"{target.url}/stats/reset", headers=authorization(), timeout=30)


def settled_stats(target: Target, wait_s: float = 10.0) -> dict[str, Any] | None:
    """``/stats`` once nothing waits or runs, so that a cut run does not leak into the next."""
    give_up = time.monotonic() + wait_s
    while True:
        answer = stats(target)
        counts = (answer or {}).get("counts", {})
        busy = counts.get("waiting", 0) + counts.get("running", 0)
        if answer is None or not busy or time.monotonic() > give_up:
            return answer
        time.sleep(0.05)


def streams(target: Target) -> bool:
    """Whether a native target can stream: it refuses the field otherwise."""
    body = {"prompt": "a", "num_tokens": 1, "stream": True, "temperature": 0}
    with requests.post(
        f"{target.url}/inference", json=body, headers=authorization(), timeout=120, stream=True
    ) as answer:
        return answer.headers.get("Content-Type", "").startswith("text/event-stream")


def _get(target: Target, path: str) -> dict[str, Any] | None:
    try:
        answer = requests.get(target.url + path, headers=authorization(), timeout=30)
        data = answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError):
        return None
    return data if isinstance(data, dict) else None
