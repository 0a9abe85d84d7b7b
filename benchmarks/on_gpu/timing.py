"""Timing on a device: the host's clock, the device's events, and what a step launches."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset", "cudaGraphLaunch")


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds a call: of each repeat by the host's clock, of the last by the device's events."""

    wall_s: tuple[float, ...]
    event_s: float | None
    peak_bytes: int | None


def timed(call: Callable[[], object], device: torch.device, times: int, repeats: int = 3) -> Timed:
    """`repeats` of `times` calls, each until the device is done."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    walls, event_s = [], None
    for _ in range(repeats):
        wait(device)
        if on_gpu:
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
        start_s = time.perf_counter()
        for _ in range(times):
            call()
        if on_gpu:
            end.record()
        wait(device)
        walls.append((time.perf_counter() - start_s) / times)
        if on_gpu:
            event_s = begin.elapsed_time(end) / 1000 / times
    return Timed(tuple(walls), event_s, torch.cuda.max_memory_allocated(device) if on_gpu else None)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def launches_of(step: Callable[[], None]) -> int:
    """Kernels, copies and graphs that the host launches in a step. Raises RuntimeError where the
    profiler is not permitted."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        step()
    return sum(e.count for e in recorded.key_averages() if e.key.startswith(LAUNCHES))


def synchronisations_of(step: Callable[[], None]) -> int:
    """Operators of torch's that wait for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in found)
