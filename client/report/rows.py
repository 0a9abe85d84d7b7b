"""The rows of summary.csv and summary.json: one for each system and load."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.analysis.comparison.scalars import SCALARS
from client.analysis.comparison.summary import Point
from client.analysis.figures import LATENCIES, PAIRED, THROUGHPUT
from client.analysis.statistics import PERCENTILES


def as_row(point: Point, notes: Sequence[str] = ()) -> dict[str, Any]:
    """A point as one flat record, for CSV and JSON; empty where a figure is not supported.

    ``notes`` are the models' own remarks.
    """
    row: dict[str, Any] = {
        "system": point.system,
        "load": point.load,
        "offered_requests_per_s": _round(point.offered),
        "seeds": len(point.seeds),
        "verdict": point.verdict,
        "ok": point.ok,
        "failed": point.failed,
        "unfinished": point.unfinished,
    }
    for f in PAIRED:
        name, interval = f"{f.key}_median_ratio", point.ratios.get(f.key)
        if f is THROUGHPUT:
            name, interval = f"{f.key}_{f.unit}", point.throughput
        row[name] = _round(interval.value if interval else None)
        row[f"{name}_low"] = _round(interval.low if interval else None)
        row[f"{name}_high"] = _round(interval.high if interval else None)
    for f in LATENCIES:
        if f.in_summary:
            row[f"{f.key}_mean_{f.unit}"] = _round(point.mean(f.key))
            for p in PERCENTILES:
                row[f"{f.key}_p{p}_{f.unit}"] = _round(point.latency(f.key, p))
            row[f"{f.key}_n"] = point.latencies[f.key].size
    row |= {scalar.column: _round(point.scalars[scalar.key]) for scalar in SCALARS}
    row["void"] = " ".join(void.figure for void in point.voids)
    row["slowdown_jain"] = _round(point.fairness.jain if point.fairness else None)
    row["notes"] = "; ".join(notes)
    return row


def write_summary(rows: Sequence[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _round(value: float | None) -> float | None:
    """Six significant digits; infinity, for an unfinished request, is left empty."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
