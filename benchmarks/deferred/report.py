"""The trade-off between immediate and deferred requests: figures and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.deferred.points import Cell, Point, Relative, points
from benchmarks.harness.report import machine, save, table
from scheduling.prediction.step_time import Work

COLUMNS = (
    "load | shape | policy | requests | TTFT p50 | p99 (95 %) | TPOT p50 | p99 (95 %) "
    "| deferred tokens/s | of the spare capacity | of what the curve allows"
)


def report(
    title: str,
    only: float,
    cells: Sequence[Cell],
    factors: Sequence[float],
    limit: int,
    out: Path | None,
    name: str,
) -> None:
    found = points(cells, only, factors, limit)
    curves = [cell.curve() for cell in cells]
    step_ms = {
        n: 1000 * float(np.median([c.seconds(Work(n, n, n, 64 * n, 64 * n)) for c in curves]))
        for n in (1, 2, 4, 8, 16, 32)
    }
    r2 = float(np.median([curve.r2 for curve in curves]))
    times = ", ".join(f"{ms:.1f}" for ms in step_ms.values())
    rows = [row(point) for point in found if point.policy != "alone"]
    card = (
        f"{title}, on {machine()}. Deferred requests alone: {only:.0f} tokens/s. Step time at 1, "
        f"2, 4, 8, 16, 32 decodes of 64 tokens: {times} ms (R2 {r2:.3f}).\n\n{table(COLUMNS, rows)}"
    )
    figures = {
        "title": title,
        "deferred_only_tokens_per_s": only,
        "step_ms": step_ms,
        "r2": r2,
        "points": [asdict(point) for point in found],
    }
    save(figures, card, out, name)


def row(p: Point) -> tuple[str, ...]:
    return (
        f"{p.load:.0%}", p.shape, p.policy, f"{p.requests}", f"{p.ttft_p50.value:.2f}",
        _told(p.ttft_p99), f"{p.tpot_p50.value:.2f}", _told(p.tpot_p99),
        f"{p.deferred_tokens_per_s:.0f}", f"{p.of_spare:.0%}",
        "" if p.of_allowed is None else format(p.of_allowed, ".0%"),
    )  # fmt: skip


def _told(ratio: Relative) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
