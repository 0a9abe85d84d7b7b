"""Timing on a device: the host's clock, and the device's events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_s(call: Callable[[], object], device: torch.device, times: int = 20) -> float:
    """Seconds of a call, median of three: between the device's events, so without the host's part
    if the calls are queued faster than they run. On a CPU by the clock."""
    call()
    found = []
    for _ in range(3):
        wait(device)
        if device.type == "cuda":
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
        start_s = time.perf_counter()
        for _ in range(times):
            call()
        seconds = time.perf_counter() - start_s
        if device.type == "cuda":
            end.record()
            wait(device)
            seconds = begin.elapsed_time(end) / 1000
        found.append(seconds / times)
    return statistics.median(found)
