"""The trade-off between immediate and deferred requests: figures, table, picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.common import machine, save
from benchmarks.deferred.points import Cell, Point, Ratio, points
from scheduling.classes.step_time import Work

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator

BASELINES = {"fifo": "#b8a12a", "priority": "#8f5fa8", "exclusive": "#5e9c51"}
TICKS = (1, 1.2, 1.5, 2, 3, 5, 8)


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
    where = machine()
    curves = [cell.curve() for cell in cells]
    step_ms = {
        n: 1000 * float(np.median([c.seconds(Work(n, n, n, 64 * n, 64 * n)) for c in curves]))
        for n in (1, 2, 4, 8, 16, 32)
    }
    r2 = float(np.median([curve.r2 for curve in curves]))
    lines = [
        f"{title}, on {where.cpu}, {where.cores} cores, torch {where.torch}. Deferred requests "
        f"alone: {only:.0f} tokens/s. Step time at 1, 2, 4, 8, 16, 32 decodes of 64 tokens: "
        f"{', '.join(f'{ms:.1f}' for ms in step_ms.values())} ms (R2 {r2:.3f}).",
        "",
        "| load | shape | policy | requests | TTFT p50 | p99 (95 %) | TPOT p50 | p99 (95 %) "
        "| deferred tokens/s | of the spare capacity | of what the curve allows |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.load:.0%} | {p.shape} | {p.policy} | {p.requests} "
        f"| {p.ttft_p50.value:.2f} | {_told(p.ttft_p99)} "
        f"| {p.tpot_p50.value:.2f} | {_told(p.tpot_p99)} "
        f"| {p.deferred_tokens_per_s:.0f} | {p.of_spare:.0%} "
        f"| {'' if p.of_allowed is None else format(p.of_allowed, '.0%')} |"
        for p in found
        if p.policy != "alone"
    ]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        draw(found, title, out / f"{name}.png")
    figures = {
        "title": title,
        "deferred_only_tokens_per_s": only,
        "step_ms": step_ms,
        "r2": r2,
        "points": [asdict(point) for point in found],
    }
    save(figures, "\n".join(lines), out, name)


def _told(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def draw(found: Sequence[Point], title: str, path: Path) -> None:
    """p99 of TTFT and TPOT against the share of the spare capacity, the geometric mean over the
    shapes of a load."""
    pooled = [p for p in found if p.shape == "all"]
    loads = sorted({p.load for p in pooled})
    figure, grid = plt.subplots(
        2, len(loads), figsize=(5.2 * len(loads), 7.2), layout="constrained", squeeze=False
    )
    for column, load in enumerate(loads):
        here = [p for p in pooled if p.load == load]
        for axes, field, label in (
            (grid[0][column], "ttft_p99", "p99 TTFT"),
            (grid[1][column], "tpot_p99", "p99 TPOT"),
        ):
            curve = [p for p in here if p.policy.startswith("budget")]
            xs, ratios = [p.of_spare for p in curve], [getattr(p, field) for p in curve]
            ys = [ratio.value for ratio in ratios]
            bars = [[r.value - r.low for r in ratios], [r.high - r.value for r in ratios]]
            axes.errorbar(
                xs, ys, np.maximum(bars, 0), fmt="o-", color="#2a7fb8", capsize=2, label="budget"
            )
            for x, y, point in zip(xs, ys, curve, strict=True):
                axes.annotate(
                    point.policy.removeprefix("budget "),
                    (x, y),
                    textcoords="offset points",
                    xytext=(5, -11),
                    fontsize=8,
                )
            for point in here:
                if point.policy in BASELINES:
                    y = getattr(point, field).value
                    colour = BASELINES[point.policy]
                    axes.plot(point.of_spare, y, "s", color=colour, label=point.policy)
            axes.axhline(1.0, color="#888888", linewidth=0.8, linestyle=":")
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=TICKS))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.grid(alpha=0.25)
            axes.set_xlim(left=0)
            axes.set_xlabel("deferred tokens/s, share of the spare capacity")
            axes.set_ylabel(f"{label} of immediate requests / alone")
            axes.set_title(f"{load:.0%} of capacity")
    grid[0][0].legend(frameon=False)
    figure.suptitle(title, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
