"""Shared by the benchmarks: the work, the bare loop that does it (`bare.py`), the machine, the
card."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.alternate import QUIET_CORES
from benchmarks.bare import WORKS as WORKS
from benchmarks.bare import BareRun as BareRun
from benchmarks.bare import Job as Job
from benchmarks.bare import Tally as Tally
from benchmarks.bare import offline_work as offline_work
from benchmarks.bare import run_bare as run_bare
from client.load.machine import Company

COMPANY = Company()  # from the start of the benchmark on


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that measured a figure."""

    cpu: str
    cores: int
    memory_gib: float
    gpu: str | None
    torch: str
    python: str


def machine() -> Machine:
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        torch=torch.__version__,
        python=platform.python_version(),
    )


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """A small model restricts torch to one thread when it is loaded: the next model in the same
    process must have all of them again."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cpu_name() -> str:
    """The processor from /proc/cpuinfo, with its family and model if the name is vague."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.processor())
    return f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def save(report: dict[str, Any], table: str, out: Path | None, name: str) -> None:
    """Prints the card for people and, as the last line, JSON for machines; keeps both in `out`.

    Keeps nothing if others used the machine meanwhile: SystemExit says so, after the card.
    """
    others = round(COMPANY.cores(), 3)
    report = {
        "machine": asdict(machine()),
        "date": time.strftime("%Y-%m-%d"),
        "cores_of_others": others,
        **report,
    }
    print(table)
    busy = others > QUIET_CORES
    if out is not None and not busy:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
        (out / f"{name}.md").write_text(table + "\n")
    print(json.dumps(report))
    if out is not None and busy:
        raise SystemExit(
            f"not recorded in {out}: other processes used {others:.2f} of a core, "
            f"{QUIET_CORES:g} is allowed"
        )
