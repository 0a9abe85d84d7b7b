"""The comparison's pictures. Draws what summary and records hold; computes nothing new."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # before pyplot: no display is needed or wanted

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from client.analysis.gates import SATURATED, VALID
from client.analysis.metrics import Floats
from client.analysis.results import Result
from client.analysis.statistics import least_n
from client.analysis.summary import Point, final

_COLOURS = ("#4c566a", "#d08770", "#2a7fb8", "#5e9c51", "#8f5fa8", "#b8a12a")
_KNOWN = {"nobatch": _COLOURS[0], "static": _COLOURS[1], "dynamic": _COLOURS[2]}

STYLE: dict[Any, Any] = {
    "figure.dpi": 110, "savefig.dpi": 130, "font.size": 10, "axes.grid": True,
    "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "axes.axisbelow": True,
}  # fmt: skip


def colour(name: str, names: Sequence[str]) -> str:
    """A contestant's colour, the same in every picture."""
    others = [n for n in names if n not in _KNOWN]
    return _KNOWN.get(name) or _COLOURS[(3 + others.index(name)) % len(_COLOURS)]


def log_scale(axes: Axes) -> None:
    """A logarithmic y axis that is labelled at 1, 2 and 5 of each decade, in plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def throughput(points: Sequence[Point], path: Path) -> Path:
    """Output tokens a second against offered load, with the intervals over seeds."""
    names = _names(points)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
        for name in names:
            mine = [p for p in points if p.contestant == name]
            x = [p.load for p in mine]
            y = [p.throughput.value for p in mine]
            low = [p.throughput.value - _or(p.throughput.low, p.throughput.value) for p in mine]
            high = [_or(p.throughput.high, p.throughput.value) - p.throughput.value for p in mine]
            c = colour(name, names)
            axes.errorbar(x, y, yerr=[low, high], color=c, capsize=3, lw=1.6, label=name)
            _marks(axes, mine, y, c)
        _load_axis(axes, points)
        # Two seeds can give an interval that would flatten everything else: it leaves the axis.
        top = max((p.throughput.value for p in points), default=0.0)
        wide = any(_or(p.throughput.high, 0.0) > 2 * top for p in points)
        axes.set_ylim(bottom=0, top=2 * top if wide and top else None)
        axes.set_ylabel("output tokens / s in the window")
        axes.set_title("Throughput against offered load", loc="left")
        axes.legend(loc="upper left")
        _legend_of_marks(axes, points)
    return save(figure, path)


def latency(points: Sequence[Point], path: Path) -> Path:
    """Median and tail of TTFT and E2E against offered load; the tail that n supports."""
    names = _names(points)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharex=True)
        for axes, (key, title) in zip(
            panels, (("ttft", "Time to first token"), ("e2e", "End to end")), strict=True
        ):
            tail = tail_of([p.latency_n[key] for p in points])
            for name in names:
                mine = [p for p in points if p.contestant == name]
                c = colour(name, names)
                for p, style, shown in ((50.0, "-", "median"), (tail, ":", f"p{tail:g}")):
                    ys = [_finite(point.latency(key, p)) for point in mine]
                    label = f"{name}, {shown}"
                    axes.plot([q.load for q in mine], ys, style, color=c, lw=1.6, label=label)
                    _marks(axes, mine, ys, c)
                means = [_finite(point.mean(key)) for point in mine]
                label = f"{name}, mean"
                axes.plot([q.load for q in mine], means, "+", color=c, ms=10, mew=1.6, label=label)
            log_scale(axes)
            axes.set_ylabel("seconds, from the intended time")
            axes.set_title(f"{title} against offered load", loc="left")
            _load_axis(axes, points)
        # Beside the data, of which nobody knows where it leaves room for nine names.
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(names), fontsize=8)
        _legend_of_marks(panels[1], points)
    return save(figure, path)


def by_tokens(points: Sequence[Point], results: Sequence[Result], path: Path) -> Path:
    """The original's figure: latency against requested tokens, and the same as slowdown."""
    names = _names(points)
    load = _telling_load(points)
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        for name in names:
            c = colour(name, names)
            asked = [
                o
                for r in final(results)
                if r.contestant == name and r.load == load
                for o in r.run.outcomes
            ]
            outcomes = [o for o in asked if o.ok and o.end_s is not None]
            x = np.array([o.requested_tokens for o in outcomes], dtype=np.float64)
            y = np.array([(o.end_s or 0.0) - o.origin_s for o in outcomes])
            if not x.size:
                continue
            point = next(p for p in points if p.contestant == name and p.load == load)
            label = _labelled(name, point.verdict)
            if cut := sum(o.unfinished for o in asked):
                label += f", {cut} of {len(asked)} unfinished: not shown"
            left.plot(x, y, ".", color=c, alpha=0.35, ms=4)
            centres, medians = _binned(x, y)
            left.plot(centres, medians, "-", color=c, lw=1.8, label=label)
            if point.fairness is not None:
                b = point.fairness.buckets
                right.plot(
                    [(q.low + q.high) / 2 for q in b], [q.mean for q in b], "o-", color=c, lw=1.6,
                    label=f"{label}, Jain {point.fairness.jain:.2f}",
                )  # fmt: skip
        left.set_ylim(bottom=0)
        left.set_xlabel("requested tokens")
        left.set_ylabel("E2E latency in seconds")
        left.set_title(f"Latency by requested tokens, load {load:g}", loc="left")
        left.legend()
        log_scale(right)
        right.set_xlabel("requested tokens")
        right.set_ylabel("slowdown: E2E / E2E alone")
        right.set_title(f"Slowdown by size, load {load:g}: flat is fair", loc="left")
        if right.has_data():
            right.legend()
        else:
            text = "too few answers of each size"
            right.text(0.5, 0.5, text, transform=right.transAxes, ha="center", color="#555555")
    return save(figure, path)


def over_time(results: Sequence[Result], path: Path) -> Path | None:
    """One run a contestant: the load's shape, batch size under it, and the latency it caused."""
    kept = final(results)
    load = max(r.load for r in kept)
    seed = min(r.seed for r in kept)
    shown = [r for r in kept if r.load == load and r.seed == seed]
    if not shown:
        return None
    names = list(dict.fromkeys(r.contestant for r in kept))
    shown.sort(key=lambda r: names.index(r.contestant))
    with plt.rc_context(STYLE):
        figure, (top, middle, bottom) = plt.subplots(
            3, 1, figsize=(9, 7.6), layout="constrained", sharex=True, height_ratios=(1, 2, 2)
        )
        workload = shown[0].run.workload
        times = np.array([q.at_s or 0.0 for q in workload.requests])
        span = max(workload.duration_s, 1e-3)
        top.hist(times, bins=np.linspace(0, span, 61).tolist(), color="#9aa5b1")
        top.set_ylabel("arrivals")
        top.set_title(f"One run at load {load:g}: the load, batch size, latency", loc="left")
        for r in shown:
            c = colour(r.contestant, names)
            t, rows = batch_sizes(r)
            if t.size:
                label = _labelled(r.contestant, r.verdict.word)
                middle.plot(t, rows, drawstyle="steps-post", color=c, lw=1.1, label=label)
            done = [o for o in r.run.outcomes if o.ok and o.end_s is not None]
            bottom.plot(
                [o.origin_s for o in done], [(o.end_s or 0.0) - o.origin_s for o in done], ".",
                color=c, ms=5, alpha=0.8, label=_labelled(r.contestant, r.verdict.word),
            )  # fmt: skip
        middle.set_ylabel("rows in the iteration")
        bottom.set_ylabel("E2E latency in s")
        log_scale(bottom)
        bottom.set_xlabel("seconds since the run began (latency: by intended time)")
        named = middle if middle.has_data() else bottom
        named.legend(loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=len(shown), fontsize=8)
    return save(figure, path)


def batch_sizes(result: Result) -> tuple[Floats, Floats]:
    """When each iteration began, from the run's start, and its rows; empty where not known.

    The server's clock is not the client's: its first iteration is laid on the first request sent.
    """
    table = result.iterations or {}
    columns, lines = table.get("columns", []), table.get("iterations", [])
    if not lines or "start_s" not in columns or "rows" not in columns or not result.run.outcomes:
        return np.zeros(0), np.zeros(0)
    values = np.array(lines, dtype=np.float64)
    start, rows = values[:, columns.index("start_s")], values[:, columns.index("rows")]
    first_sent = min(o.sent_s for o in result.run.outcomes)
    ends = start + values[:, columns.index("duration_s")] if "duration_s" in columns else start
    # Between iterations nothing runs: the line goes down to 0 where there is a pause.
    t, y = [], []
    for k in range(start.size):
        t.append(start[k])
        y.append(rows[k])
        if k + 1 == start.size or start[k + 1] - ends[k] > 0.05:
            t.append(ends[k])
            y.append(0.0)
    return np.array(t) - start[0] + first_sent, np.array(y)


def tail_of(counts: Sequence[int]) -> float:
    """The highest percentile that most of these samples support."""
    typical = float(np.median(counts)) if counts else 0.0
    return next((p for p in (99.0, 95.0, 90.0) if typical >= least_n(p)), 90.0)


def _telling_load(points: Sequence[Point]) -> float:
    """The highest load with enough answers of each size and nobody saturated;

    else the lowest one with enough answers, else the highest.
    """
    loads = sorted({p.load for p in points})
    here = {x: [p for p in points if p.load == x] for x in loads}
    enough = [x for x in loads if all(p.fairness is not None for p in here[x])]
    calm = [x for x in enough if all(p.verdict == VALID for p in here[x])]
    return calm[-1] if calm else enough[0] if enough else loads[-1]


def _labelled(name: str, verdict: str) -> str:
    return name if verdict in (VALID, SATURATED) else f"{name} ({verdict})"


def _binned(x: Floats, y: Floats) -> tuple[list[float], list[float]]:
    parts = np.array_split(np.argsort(x, kind="stable"), max(1, min(10, x.size // 5)))
    return [float(x[p].mean()) for p in parts], [float(np.median(y[p])) for p in parts]


def _names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(p.contestant for p in points))


def _marks(axes: Axes, points: Sequence[Point], ys: Sequence[float], c: str) -> None:
    for point, y in zip(points, ys, strict=True):
        if point.verdict == VALID:
            axes.plot(point.load, y, "o", color=c, ms=6)
        elif point.verdict == SATURATED:
            axes.plot(point.load, y, "o", mec=c, mfc="white", ms=6)
        else:
            axes.plot(point.load, y, "X", color="#c0392b", ms=9)


def _legend_of_marks(axes: Axes, points: Sequence[Point]) -> None:
    words = {p.verdict for p in points}
    notes = []
    if SATURATED in words:
        notes.append("hollow: SATURATED")
    if words - {VALID, SATURATED}:
        notes.append("red cross: not to be used")
    axes.text(
        1.0, 1.02, "\n".join(notes), transform=axes.transAxes, ha="right", va="bottom", fontsize=8,
        color="#555555",
    )  # fmt: skip


def _load_axis(axes: Axes, points: Sequence[Point]) -> None:
    loads = sorted({p.load for p in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [f"{x:g}" for x in loads])
    axes.minorticks_off()
    unit = points[0].offered / points[0].load
    axes.set_xlabel(f"offered load (1 = {unit:.3g} requests/s, one at a time)")


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _finite(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else value
