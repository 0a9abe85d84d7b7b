"""The machine that measured a figure: hardware, versions, commit, cores and their use."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_SHARE = 4  # the client takes at most a quarter of the physical cores


def machine() -> dict[str, Any]:
    """This machine, on which the client runs; a server reports its own."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _ask_gpus("name"),
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


def policy_sha256(policy: str) -> str | None:
    """Of the file of a policy module:Class, in the folder where servers look for it; otherwise
    None."""
    module, colon, _ = policy.partition(":")
    file = Path(os.environ.get("EB_POLICY_FOLDER", "."), f"{module.replace('.', '/')}.py")
    return hashlib.sha256(file.read_bytes()).hexdigest() if colon and file.is_file() else None


@dataclass(frozen=True, slots=True)
class Cores:
    """Which logical cores the client runs on, and the servers that it starts."""

    client: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def shared(self) -> bool:
        return bool(set(self.client) & set(self.servers))

    def __str__(self) -> str:
        if self.shared:
            return f"client and servers share the {len(self.servers)} cores of this machine"
        client, servers = (", ".join(map(str, cores)) for cores in (self.client, self.servers))
        return f"client on cores {client}, servers on cores {servers}"


def cores_for(workers: int = 1) -> Cores:
    """A physical core for each of the client's processes, where the servers keep three in four."""
    allowed = os.sched_getaffinity(0)
    return divided([siblings(core) & allowed for core in sorted(allowed)], workers)


def divided(siblings_of: Collection[frozenset[int] | set[int]], workers: int) -> Cores:
    """By physical cores, each given as its logical ones."""
    physical = sorted({tuple(sorted(group)) for group in siblings_of})
    everyone = tuple(sorted(core for group in physical for core in group))
    if workers * _SHARE > len(physical):
        return Cores(everyone, everyone)
    own = {core for group in physical[-workers:] for core in group}
    return Cores(tuple(sorted(own)), tuple(core for core in everyone if core not in own))


def siblings(core: int) -> set[int]:
    """The logical cores of its physical one, itself among them."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return {core}
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found | {core}


def adopt_orphans() -> None:
    """On Linux, descendants whose parent ends become children of this process: otherwise their CPU
    time counts as that of others. vLLM's server ends before its engine does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Company:
    """The use of the cores from now on by others than this process and its children: other programs
    and the hypervisor (steal)."""

    def __init__(self) -> None:
        self._at_s, self._all_s, self._ours_s = time.monotonic(), _all_s(), _ours_s()

    def cores(self) -> float:
        """The cores that they used on average since then."""
        seconds = max(time.monotonic() - self._at_s, 1e-9)
        others_s = (_all_s() - self._all_s) - (_ours_s() - self._ours_s)
        return max(0.0, others_s / seconds)


def _all_s() -> float:
    """CPU time of all processes; interrupts are left out, since they may be ours."""
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


def holds(copies: int, each_bytes: int) -> bool:
    """Whether memory has room for so many more of this size, and each GPU for so many times what is
    used of it now."""
    gpus = [line.split(",") for line in _ask_gpus("memory.used,memory.total") or ()]
    try:
        in_gpus = all((copies + 1) * int(used) <= int(total) for used, total in gpus)
    except ValueError:  # a GPU that does not say
        return False
    return in_gpus and copies * each_bytes <= psutil.virtual_memory().available


def _ask_gpus(what: str) -> list[str] | None:
    """Of each NVIDIA GPU; empty without a driver, None where the driver does not say."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"],
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
