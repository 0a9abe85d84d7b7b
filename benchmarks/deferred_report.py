"""The trade-off between immediate and deferred requests: figures, table, picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

from benchmarks.common import machine, save
from scheduling.step_time import Curve, Work
from seams import IterationRecord, RequestRecord
from stats import tpot_s, ttft_s

mpl.use("Agg")
from matplotlib import pyplot as plt

LEAD_IN = 0.15  # of a run's time
BASELINES = {"fifo": "#b8a12a", "priority": "#8f5fa8", "exclusive": "#5e9c51"}


@dataclass(frozen=True, slots=True)
class Step:
    """An iteration: the immediate part, all of it, and the budget where no immediate one was."""

    immediate: Work
    all: Work
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A run. Its time ends before the last immediate requests do."""

    start_s: float
    duration_s: float
    iterations: Sequence[IterationRecord]
    requests: Sequence[RequestRecord]
    steps: Sequence[Step]  # of the iterations

    @property
    def within(self) -> list[tuple[IterationRecord, Step]]:
        """Without the beginning, in which the first deferred prompts are computed, and the end, in
        which there are no more deferred requests."""
        begin_s, end_s = self.start_s + LEAD_IN * self.duration_s, self.start_s + self.duration_s
        pairs = zip(self.iterations, self.steps, strict=True)
        return [(record, step) for record, step in pairs if begin_s <= record.start_s < end_s]

    @property
    def within_s(self) -> float:
        return (1 - LEAD_IN) * self.duration_s

    @property
    def deferred_tokens_per_s(self) -> float:
        return sum(record.deferred_generated for record, _ in self.within) / self.within_s

    @property
    def immediate_tokens_per_s(self) -> float:
        return sum(r.generated - r.deferred_generated for r, _ in self.within) / self.within_s

    @property
    def immediate(self) -> list[RequestRecord]:
        return [r for r in self.requests if r.service_class == "immediate"]

    @property
    def mean_output(self) -> float:
        return float(np.mean([r.max_tokens for r in self.requests]))


@dataclass(frozen=True, slots=True)
class Cell:
    """One load in one shape, under every policy, and `alone`."""

    shape: str
    load: float
    runs: dict[str, Measured]


@dataclass(frozen=True, slots=True)
class Point:
    """A policy under a load: latencies as ratios to `alone`, deferred tokens/s as shares."""

    shape: str
    load: float
    policy: str
    requests: int
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    deferred_tokens_per_s: float
    of_left_over: float
    of_allowed: float | None  # by the step-time curve under that budget; of `budget` only


def points(
    cells: Sequence[Cell], only: float, curve: Curve, factors: Sequence[float], limit: int
) -> list[Point]:
    """Of every cell, and of each load with the requests of all its shapes pooled."""
    found = []
    budgets = {f"budget {factor:g}": factor for factor in factors}
    pools = {load: Cell("all", load, {}) for load in sorted({cell.load for cell in cells})}
    for cell in [*cells, *pools.values()]:
        parts = [c for c in cells if c.load == cell.load and cell.shape in (c.shape, "all")]
        for name in parts[0].runs:
            runs, alone = ([part.runs[n] for part in parts] for n in (name, "alone"))
            tokens_per_s = float(np.mean([run.deferred_tokens_per_s for run in runs]))
            left_over = only - float(np.mean([run.immediate_tokens_per_s for run in alone]))
            allowed = None
            if name in budgets:
                allowed = float(
                    np.mean([allowed_tokens_per_s(r, curve, budgets[name], limit) for r in runs])
                )
            ttft_p50, ttft_p99, tpot_p50, tpot_p99 = (latencies(runs) / latencies(alone)).tolist()
            found.append(
                Point(
                    cell.shape,
                    cell.load,
                    name,
                    sum(len(run.immediate) for run in runs),
                    ttft_p50,
                    ttft_p99,
                    tpot_p50,
                    tpot_p99,
                    tokens_per_s,
                    tokens_per_s / left_over,
                    tokens_per_s / allowed if allowed else None,
                )
            )
    return found


def latencies(runs: Sequence[Measured]) -> npt.NDArray[np.float64]:
    """Seconds [4]: p50 and p99 of TTFT, p50 and p99 of TPOT, of the immediate requests."""
    records = [record for run in runs for record in run.immediate]
    tpots = [t for record in records if (t := tpot_s(record)) is not None]
    ttfts = [ttft_s(record) for record in records]
    return np.array([np.percentile(values, q) for values in (ttfts, tpots) for q in (50, 99)])


def allowed_tokens_per_s(run: Measured, curve: Curve, factor: float, limit: int) -> float:
    """Deferred tokens/s that would use up the budget of each iteration of this run exactly, by the
    measured curve, every token paying for its share of its prompt. `budget` is the policy's own:
    `factor` x the time of 1/`factor` of the immediate work, as far as the places go, and where no
    immediate request is, its cap."""
    deferred = [r for r in run.requests if r.service_class == "deferred"]
    prompt = float(np.mean([r.prompt_tokens for r in deferred]))
    output = float(np.mean([r.max_tokens for r in deferred]))
    length = prompt + output / 2
    one = Work(
        tokens=1 + prompt / output,
        rows=1 + 1 / output,
        drawn=1,
        attended=length + prompt**2 / 2 / output,
        context=length + prompt / output,
    )
    busy_s = tokens = 0.0
    idle_s = [step.idle_s for _, step in run.within if step.idle_s is not None]
    for record, step in run.within:
        if step.immediate.tokens:
            stretch = max(1.0, min(factor, limit / step.immediate.rows))
            budget_s = stretch * curve.seconds(step.immediate.scaled(1 / stretch))
            tokens += _rows(curve, step.immediate, one, budget_s, limit - step.immediate.rows)
            busy_s += record.duration_s
    if idle_s:
        budget_s = float(np.mean(idle_s))
        rows = _rows(curve, Work(), one, budget_s, limit)
        rest_s = max(0.0, run.within_s - busy_s)
        tokens += rest_s * rows / curve.seconds(one.scaled(rows)) if rows else 0.0
    return tokens / run.within_s


def _rows(curve: Curve, beside: Work, one: Work, budget_s: float, most: float) -> float:
    low, high = 0.0, max(0.0, most)
    for _ in range(20):
        rows = (low + high) / 2
        if curve.seconds(_sum(beside, one.scaled(rows))) <= budget_s:
            low = rows
        else:
            high = rows
    return low


def _sum(a: Work, b: Work) -> Work:
    return Work(
        a.tokens + b.tokens,
        a.rows + b.rows,
        a.drawn + b.drawn,
        a.attended + b.attended,
        a.context + b.context,
    )


def report(
    title: str,
    only: float,
    curve: Curve,
    cells: Sequence[Cell],
    factors: Sequence[float],
    limit: int,
    out: Path | None,
    name: str,
) -> None:
    found = points(cells, only, curve, factors, limit)
    where = machine()
    step_ms = {n: 1000 * curve.seconds(Work(n, n, n, 64 * n, 64 * n)) for n in (1, 2, 4, 8, 16, 32)}
    lines = [
        f"{title}, on {where.cpu}, {where.cores} cores, torch {where.torch}. Deferred requests "
        f"alone: {only:.0f} tokens/s. Step time at 1, 2, 4, 8, 16, 32 decodes of 64 tokens: "
        f"{', '.join(f'{ms:.1f}' for ms in step_ms.values())} ms (R2 {curve.r2:.3f}).",
        "",
        "| load | shape | policy | requests | TTFT p50 | p99 | TPOT p50 | p99 "
        "| deferred tokens/s | of the left-over | of what the curve allows |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.load:.0%} | {p.shape} | {p.policy} | {p.requests} "
        f"| {p.ttft_p50:.2f} | {p.ttft_p99:.2f} | {p.tpot_p50:.2f} | {p.tpot_p99:.2f} "
        f"| {p.deferred_tokens_per_s:.0f} | {p.of_left_over:.0%} "
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
        "r2": curve.r2,
        "points": [asdict(point) for point in found],
    }
    save(figures, "\n".join(lines), out, name)


def draw(found: Sequence[Point], title: str, path: Path) -> None:
    """p99 of TTFT and TPOT against the share of the left-over, all shapes of a load pooled."""
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
            xs, ys = ([getattr(p, f) for p in curve] for f in ("of_left_over", field))
            axes.plot(xs, ys, "o-", color="#2a7fb8", label="budget")
            for point in curve:
                axes.annotate(
                    point.policy.removeprefix("budget "),
                    (point.of_left_over, getattr(point, field)),
                    textcoords="offset points",
                    xytext=(5, -11),
                    fontsize=8,
                )
            for point in here:
                if point.policy in BASELINES:
                    y = getattr(point, field)
                    colour = BASELINES[point.policy]
                    axes.plot(point.of_left_over, y, "s", color=colour, label=point.policy)
            axes.axhline(1.0, color="#888888", linewidth=0.8, linestyle=":")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
            axes.grid(alpha=0.25, which="both")
            axes.set_xlim(left=0)
            axes.set_xlabel("deferred tokens/s, share of the left-over")
            axes.set_ylabel(f"{label} of immediate requests / alone")
            axes.set_title(f"{load:.0%} of capacity")
    grid[0][0].legend(frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
