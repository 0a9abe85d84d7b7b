"""Statistics: receives the records of requests and iterations, and aggregates them on request.

Receiving is a few additions in the loop's thread; sorting and counting happen in the reader's
thread. Memory is bounded: totals cover the whole window since the last reset, percentiles
and lists the newest records of it. No torch, no clock: times come with the records.
"""

from __future__ import annotations

import functools
import os
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
import psutil

from seams import End, IterationRecord, Recorder, RequestRecord, ServiceClass
from telemetry.figures import (
    ClassFigures,
    Figures,
    Iterations,
    Latencies,
    LatencyByTokens,
    Percentiles,
    Totals,
)

REQUESTS_KEPT = 20_000
ITERATIONS_KEPT = 20_000
BUCKET_TOKENS = 10  # width of latency-by-num-tokens
ITERATION_COLUMNS = ("start_s", "duration_s", "rows", "tokens", "padding")


class Recorders:
    """A seams.Recorder that passes records to several."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def iteration(self, record: IterationRecord) -> None:
        for recorder in self._recorders:
            recorder.iteration(record)

    def request(self, record: RequestRecord) -> None:
        for recorder in self._recorders:
            recorder.request(record)

    def busy(self, start_s: float, end_s: float) -> None:
        for recorder in self._recorders:
            recorder.busy(start_s, end_s)


class Queue(Protocol):
    """What is in flight, as the manager knows it."""

    @property
    def counts(self) -> Mapping[str, int]: ...  # waiting, running

    @property
    def pending(self) -> int: ...  # of the waiting ones, those that were not received yet

    @property
    def busy_since_s(self) -> float | None: ...  # start of the present stretch with work


@dataclass(slots=True)
class _Window:
    """Everything since `start_s`."""

    start_s: float
    since_unix_s: float
    received: int = 0
    rejected: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # by RequestRecord.end
    latency_per_token_sum_s: float = 0.0
    busy_s: float = 0.0
    busy_until_s: float = 0.0  # end of what `busy_s` holds
    iterations: int = 0
    generated: int = 0
    tokens: int = 0
    positions: int = 0
    model_s: float = 0.0
    preemptions: int = 0
    deferred_tokens: int = 0
    deferred_generated: int = 0
    looked_up_tokens: int = 0  # of prompts, in the prefix cache
    hit_tokens: int = 0
    ended_by_class: Counter[tuple[str, str]] = field(default_factory=Counter)  # (class, end)
    rows: Counter[int] = field(default_factory=Counter)  # iterations by number of rows
    newest_requests: deque[RequestRecord] = field(
        default_factory=lambda: deque(maxlen=REQUESTS_KEPT)
    )
    # start_s, duration_s, batch size, tokens, padding
    newest_iterations: deque[tuple[float, float, int, int, int]] = field(
        default_factory=lambda: deque(maxlen=ITERATIONS_KEPT)
    )

    def not_counted_s(self, start_s: float, end_s: float) -> float:
        """The part of a stretch that lies in the window and not yet in `busy_s`. Stretches may
        overlap: they begin with an arrival, which a large body can keep from the queue."""
        return max(0.0, end_s - max(start_s, self.start_s, self.busy_until_s))


class Stats:
    """A seams.Recorder for a server. All methods may be called from any thread."""

    def __init__(self, now_s: float) -> None:
        self._lock = threading.Lock()
        self._window = _Window(now_s, time.time())

    def reset(self, now_s: float) -> None:
        """Starts a new window. What is in flight counts where it ends."""
        with self._lock:
            self._window = _Window(now_s, time.time())

    # --- taking in --------------------------------------------------------------------------

    def iteration(self, record: IterationRecord) -> None:
        with self._lock:
            window = self._window
            window.iterations += 1
            window.generated += record.num_generated
            window.tokens += record.num_tokens
            window.positions += record.num_positions
            window.model_s += record.duration_s
            window.deferred_tokens += record.deferred_tokens
            window.deferred_generated += record.deferred_generated
            window.rows[record.batch_size] += 1
            window.newest_iterations.append(
                (
                    record.start_s,
                    record.duration_s,
                    record.batch_size,
                    record.num_tokens,
                    record.padding,
                )
            )

    def request(self, record: RequestRecord) -> None:
        with self._lock:
            window = self._window
            window.ended[record.end] += 1
            window.ended_by_class[record.service_class, record.end] += 1
            window.preemptions += record.num_preemptions
            if record.cached_tokens is not None:
                window.looked_up_tokens += record.prompt_tokens
                window.hit_tokens += record.cached_tokens
            if _completed(record):
                window.latency_per_token_sum_s += latency_s(record) / record.generated
                window.newest_requests.append(record)

    def busy(self, start_s: float, end_s: float) -> None:
        with self._lock:
            window = self._window
            window.busy_s += window.not_counted_s(start_s, end_s)
            window.busy_until_s = end_s

    def count_received(self) -> None:
        with self._lock:
            self._window.received += 1

    def count_rejected(self) -> None:
        with self._lock:
            self._window.received += 1
            self._window.rejected += 1

    def count_left(self) -> None:
        """A request whose client left before it was handled."""
        with self._lock:
            self._window.received += 1
            self._window.ended["cancelled"] += 1

    # --- reading ----------------------------------------------------------------------------

    def summary(self, now_s: float, queue: Queue) -> Figures:
        """The figures of the window."""
        busy_since_s = queue.busy_since_s
        with self._lock:
            window = self._window
            requests = list(window.newest_requests)
            rows = dict(sorted(window.rows.items()))
            busy_s = window.busy_s
            if busy_since_s is not None:
                busy_s += window.not_counted_s(busy_since_s, now_s)
            completed = window.ended["length"] + window.ended["stop"]
            by_class = window.ended_by_class.copy()
            totals: Totals = {
                "latency-per-token": _ratio(window.latency_per_token_sum_s, completed),
                "throughput": _ratio(window.generated, busy_s),
                "total-tokens-handled": window.generated,
                "total-elapsed-time": busy_s,
                "since": window.since_unix_s,
                "counts": {
                    "received": window.received + queue.pending,
                    "completed": completed,
                    "failed": window.ended["failed"],
                    "cancelled": window.ended["cancelled"],
                    "rejected": window.rejected,
                    **queue.counts,
                },
                "batch-size": {
                    "mean": _ratio(sum(n * times for n, times in rows.items()), window.iterations),
                    "max": max(rows, default=0),
                    "histogram": {str(n): times for n, times in rows.items()},
                },
                "padding-share": _ratio(window.positions - window.tokens, window.positions),
                "model-share": _ratio(window.model_s, busy_s),
                "preemptions": window.preemptions,
                "deferred-tokens": {
                    "computed": window.deferred_tokens,
                    "generated": window.deferred_generated,
                },
                "prefix-cache": {
                    "looked-up-tokens": window.looked_up_tokens,
                    "hit-tokens": window.hit_tokens,
                },
            }
        # sorting is for after the lock, which the loop needs too
        return {
            **totals,
            **_latencies(requests),
            "latency-by-num-tokens": _by_tokens(requests),
            "by-class": _by_class(by_class, requests),
        }

    def iterations(self) -> Iterations:
        """The newest iterations of the window; times in seconds since its start."""
        with self._lock:
            window = self._window
            newest = list(window.newest_iterations)
            start_s, total = window.start_s, window.iterations
        return {
            "columns": list(ITERATION_COLUMNS),
            "kept": ITERATIONS_KEPT,
            "dropped": total - len(newest),
            "iterations": [[at_s - start_s, *figures] for at_s, *figures in newest],
        }


def queue_s(record: RequestRecord) -> float:
    assert record.admitted_s is not None
    return record.admitted_s - record.arrival_s


def ttft_s(record: RequestRecord) -> float:
    assert record.first_token_s is not None
    return record.first_token_s - record.arrival_s


def tpot_s(record: RequestRecord) -> float | None:
    """(end - first token) / (tokens - 1): None for a single token."""
    assert record.first_token_s is not None
    if record.generated < 2:
        return None
    return (record.end_s - record.first_token_s) / (record.generated - 1)


def latency_s(record: RequestRecord) -> float:
    return record.end_s - record.arrival_s


def _completed(record: RequestRecord) -> bool:
    return record.end in ("length", "stop")


def _by_tokens(requests: Sequence[RequestRecord]) -> list[LatencyByTokens]:
    by_bucket: dict[int, list[float]] = {}
    for record in requests:
        bucket = -(-record.max_tokens // BUCKET_TOKENS) * BUCKET_TOKENS
        by_bucket.setdefault(bucket, []).append(latency_s(record))
    return [
        {
            "num_tokens": bucket,
            "n": len(latencies),
            "mean_s": float(np.mean(latencies)),
            "p90_s": float(np.percentile(latencies, 90)),
        }
        for bucket, latencies in sorted(by_bucket.items())
    ]


def _latencies(requests: Sequence[RequestRecord]) -> Latencies:
    return {
        "queue-s": _percentiles([queue_s(r) for r in requests]),
        "ttft-s": _percentiles([ttft_s(r) for r in requests]),
        "tpot-s": _percentiles([t for r in requests if (t := tpot_s(r)) is not None]),
        "e2e-s": _percentiles([latency_s(r) for r in requests]),
    }


def _by_class(
    ended: Mapping[tuple[str, str], int], requests: Sequence[RequestRecord]
) -> dict[str, ClassFigures]:
    def counted(service_class: str, *ends: End) -> int:
        return sum(ended.get((service_class, end), 0) for end in ends)

    return {
        name: {
            "completed": counted(name, "length", "stop"),
            "failed": counted(name, "failed"),
            "cancelled": counted(name, "cancelled"),
            **_latencies([r for r in requests if r.service_class == name]),
        }
        for name in get_args(ServiceClass)
    }


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return {"p50": None, "p90": None, "p99": None, "n": 0}
    p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99)))
    return {"p50": p50, "p90": p90, "p99": p99, "n": len(values)}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


@functools.cache
def describe_machine(device: str | None) -> dict[str, Any]:
    """Where the figures were measured; `device` is the model's, None while it loads."""
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
