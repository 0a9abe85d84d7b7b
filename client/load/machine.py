"""What a figure was measured on: machine, versions, commit."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


def machine() -> dict[str, Any]:
    """This machine, on which the client runs; a server says itself what it runs on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "system": platform.platform(),
        "loadavg": [round(x, 2) for x in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "aiohttp", "requests")},
    }


def commit() -> str:
    """The checkout's commit, marked where tracked files differ from it; 'unknown' outside git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Company:
    """What takes the cores beside this process and those that it started, from now on: other
    programs, and the hypervisor (steal)."""

    def __init__(self) -> None:
        self._at_s, self._all_s, self._ours_s = time.monotonic(), _all_s(), _ours_s()

    def cores(self) -> float:
        """How many cores' time they had on average since then."""
        seconds = max(time.monotonic() - self._at_s, 1e-9)
        others_s = (_all_s() - self._all_s) - (_ours_s() - self._ours_s)
        return max(0.0, others_s / seconds)


def _all_s() -> float:
    """CPU time of all processes; interrupts are left out, for they may be ours."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "steal", 0.0))


def _ours_s() -> float:
    """CPU time of this process and of all that it started, those that have ended included."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of reaped children
    return total


def _git(*args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _gpus() -> list[str] | None:
    """Names of the NVIDIA GPUs; empty without a driver, None where the driver does not say."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            check=True, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return listed.stdout.splitlines()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
