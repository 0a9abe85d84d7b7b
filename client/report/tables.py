"""Tables: a comparison's figures, ratios with their intervals, fairness by size; servers' /stats.

It turns what the analysis found into cells, and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.analysis.comparison.results import Headline, Loss, Pair
from client.analysis.comparison.scalars import ATTAINED, BATCH, Scalar, stated
from client.analysis.comparison.summary import TAIL, Point
from client.analysis.figures import E2E, PAIRED, THROUGHPUT, TPOT, TTFT, Figure
from client.analysis.gates import FAILED
from client.analysis.statistics import Interval
from client.report.html.page import Table, groups, seconds
from client.report.pictures.comparison import tail_of
from client.report.words import number

VOID = "*"  # marks a void figure


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the comparison: ``figure`` names what makes a cell void."""

    title: str
    figure: str
    text: Callable[[Point], str]


def comparison_table(points: Sequence[Point], losses: Sequence[Loss]) -> Table:
    """One row a system and load; those that a failed system did not reach say so."""
    tail = tail_of([p.latencies["e2e"].size for p in points])
    columns = (
        _THROUGHPUT, _latency(TTFT), _latency(TTFT, tail), _latency(TPOT), _latency(E2E),
        _latency(E2E, tail), _scalar(BATCH), _JAIN, _scalar(ATTAINED), _unfinished("unfinished"),
    )  # fmt: skip
    return _by_load(points, losses, columns)


def short_table(points: Sequence[Point], losses: Sequence[Loss]) -> Table:
    """The same for a terminal: the columns that fit on a line."""
    columns = (
        _THROUGHPUT, _latency(TTFT), _latency(TPOT), _latency(E2E), _scalar(BATCH),
        _scalar(ATTAINED), _unfinished("cut"),
    )  # fmt: skip
    return _by_load(points, losses, columns)


def _latency(figure: Figure, rank: float = 50) -> Column:
    def text(p: Point) -> str:
        return seconds(p.latency(figure.key, rank)) if p.latencies[figure.key].size else "-"

    return Column(f"{figure.name} p{rank:g}", f"{figure.key}_p{rank:g}", text)


def _scalar(scalar: Scalar) -> Column:
    def text(p: Point) -> str:
        value = p.scalars[scalar.column]
        return "-" if value is None else format(value, scalar.form)

    return Column(scalar.title, scalar.void, text)


def _unfinished(title: str) -> Column:
    return Column(title, _COUNT, lambda p: str(p.unfinished))


_COUNT = "unfinished"  # is shown for runs whose figures are not usable, too
_THROUGHPUT = Column(THROUGHPUT.name, THROUGHPUT.key, lambda p: f"{p.throughput.value:,.0f}")
_JAIN = Column("Jain", "", lambda p: "-" if p.fairness is None else f"{p.fairness.jain:.2f}")


def _by_load(points: Sequence[Point], losses: Sequence[Loss], columns: Sequence[Column]) -> Table:
    head = ("load", "system", *(column.title for column in columns), "verdict")
    rows: list[Sequence[str]] = []
    for load in sorted({p.load for p in points}):
        here = [p for p in points if p.load == load]
        measured = {p.system for p in here}
        rows += [
            (f"{load:g}", p.system, *(_cell(p, column) for column in columns), p.verdict)
            for p in here
        ]
        rows += [
            (f"{load:g}", loss.system, *["-"] * len(columns), FAILED)
            for loss in losses
            if loss.system not in measured
        ]
    return Table(head, rows, left=2, ruled=groups(rows))


def _cell(p: Point, column: Column) -> str:
    """A figure in words; marked if the client's lateness invalidated it."""
    if not p.usable and column.figure != _COUNT:
        return "-"
    return column.text(p) + (VOID if p.void(column.figure) is not None else "")


def limit_table(found: Headline) -> Table:
    """Each system where it delivered most: the figures, what they rest on, and its ratios to
    those before it."""
    over = [x.system for x in found.limits[:-1]]
    ratios = {(r.of, r.over): r.throughput for r in found.limit_ratios}
    rows = [
        (
            x.system, f"{x.load:g}", f"{x.throughput.value:,.0f}", f"{x.requests:,}",
            f"{x.seconds:.0f} s", *(ratio_text(ratios.get((x.system, o))) for o in over),
        )
        for x in found.limits
    ]  # fmt: skip
    head = ("at its limit", "load", "tok/s", "requests ended", "in", *(f"/ {o}" for o in over))
    return Table(head, rows)


def pair_table(found: Headline) -> Table:
    """Every two systems that both keep up, and each control against itself."""
    rows = []
    latencies = PAIRED[1:]
    pairs = [*((p, f"{p.of} / {p.over}") for p in found.pairs),
             *((p, f"control: {p.of} / itself") for p in found.controls)]  # fmt: skip
    for p, name in sorted(pairs, key=lambda pair: pair[0].load):
        ratios = [
            found
            for figure in latencies
            for found in (p.ratios[figure.key], p.tails.get(f"{figure.key}_p{TAIL}"))
        ]
        cells = map(ratio_text, (*ratios, p.ratios[THROUGHPUT.key]))
        rows.append((f"{p.load:g}", name, *cells))
    titles = (f"{figure.name} p{rank}" for figure in latencies for rank in (50, TAIL))
    head = ("load", "ratio", *titles, f"{THROUGHPUT.name} of a saturated control")
    return Table(head, rows, left=2, ruled=groups(rows))


def control_text(control: Pair) -> str:
    """A system against itself, in words: how much the machine alone changes a figure."""
    ratios = ((figure.name, control.ratios[figure.key]) for figure in (THROUGHPUT, TTFT, E2E))
    parts = ", ".join(f"{name} {ratio_text(r)}" for name, r in ratios if r is not None)
    return f"Control, {control.of} against itself at load {control.load:g}: {parts}."


def fairness_table(points: Sequence[Point]) -> Table:
    """Mean slowdown by output length, as far as there are enough answers of each size."""
    rows = []
    for p in points:
        if p.fairness is not None and p.usable:
            cells = [f"{b.mean:.2f} ({b.low}..{b.high} tokens)" for b in p.fairness.buckets]
            rows.append((f"{p.load:g}", p.system, f"{p.fairness.jain:.2f}", *cells))
    fifths = ("shortest fifth", "second", "third", "fourth", "longest fifth")
    return Table(("load", "system", "Jain", *fifths), rows, left=2, ruled=groups(rows))


def ratio_text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f} (too few seeds)"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def bounded(found: Interval) -> str:
    """A latency and its interval, in one unit; where n is too small for a bound it is 0 or ∞."""
    text = seconds(found.value)
    if not math.isfinite(found.value):
        return text
    scale = 1e3 if text.endswith("ms") else 1.0
    low = 0.0 if found.low is None else found.low
    high = "∞" if found.high is None or math.isinf(found.high) else number(scale * found.high)
    return f"{text} [{number(scale * low)}, {high}]"


def server_table(columns: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], caption: str) -> Table:
    """A column a server, the mean over its runs; a figure that none of them states is left out."""
    rows = []
    for title, path, text in _ROWS:
        found = [_mean([stated(stats, *path) for stats in runs]) for _, runs in columns]
        if any(value is not None for value in found):
            rows.append((title, *("-" if v is None else text(v) for v in found)))
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
