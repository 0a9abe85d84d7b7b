"""The servers' own statistics next to each other, from ``/stats`` after each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from client.analysis.comparison.scalars import stated
from client.report.html.page import Row, Table, seconds

Stats = Mapping[str, Any]


def server_table(columns: Sequence[tuple[str, Sequence[Stats]]], caption: str) -> Table:
    """A column a server, the mean over its runs; a figure that none of them states is left out."""
    rows = []
    for title, path, text in _ROWS:
        found = [_mean([stated(stats, *path) for stats in runs]) for _, runs in columns]
        if any(value is not None for value in found):
            rows.append(Row((title, *("-" if v is None else text(v) for v in found))))
    head = ("the server's own figures", *(name for name, _ in columns))
    return Table(head, rows, caption=caption)


def _percent(share: float) -> str:
    return f"{share:.0%}"


_ROWS: tuple[tuple[str, tuple[str, ...], Callable[[float], str]], ...] = (
    ("output tokens per busy second", ("throughput",), "{:,.0f}".format),
    ("latency per token, mean", ("latency-per-token",), seconds),
    ("latency (E2E), median", ("e2e-s", "p50"), seconds),
    ("latency (E2E), p90", ("e2e-s", "p90"), seconds),
    ("time to first token, median", ("ttft-s", "p50"), seconds),
    ("of it in the queue, median", ("queue-s", "p50"), seconds),
    ("rows in an iteration, mean", ("batch-size", "mean"), "{:.1f}".format),
    ("padding in computed positions", ("padding-share",), _percent),
    ("busy time inside the model", ("model-share",), _percent),
    ("requests completed", ("counts", "completed"), "{:,.0f}".format),
    ("output tokens", ("total-tokens-handled",), "{:,.0f}".format),
)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
