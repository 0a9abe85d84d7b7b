"""Where figures were measured: processor, memory, GPU and versions."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


@functools.cache
def describe_machine(device: str | None) -> dict[str, Any]:
    """`device` is the model's, None while it loads."""
    return {
        "cpu": _cpu_name(),
        "cores": _cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": None if device == "cpu" else device,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
    }


def _cores() -> int:
    """That this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
