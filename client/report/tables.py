"""The comparison's tables: figures, ratios with their intervals, fairness by size.

Turns what analysis found into cells; computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from client.analysis.gates import FAILED
from client.analysis.results import Headline, Loss, Pair
from client.analysis.statistics import Interval
from client.analysis.summary import Point
from client.report.page import Row, Table, seconds
from client.report.pictures import tail_of
from client.report.words import number

VOID = "*"  # marks a void figure


def comparison_table(points: Sequence[Point], losses: Sequence[Loss]) -> Table:
    """One row a system and load; those that a failed system did not reach say so."""
    tail = tail_of([p.latency_n["e2e"] for p in points])
    columns = (
        ("tok/s", "throughput"), ("TTFT p50", "ttft_p50"), (f"TTFT p{tail:g}", f"ttft_p{tail:g}"),
        ("TPOT p50", "tpot_p50"), ("E2E p50", "e2e_p50"), (f"E2E p{tail:g}", f"e2e_p{tail:g}"),
        ("batch", "batch"), ("Jain", "jain"), ("good", "goodput"), ("unfinished", "unfinished"),
    )  # fmt: skip
    return _by_load(points, losses, columns)


def short_table(points: Sequence[Point], losses: Sequence[Loss]) -> Table:
    """The same for a terminal: the columns that fit on a line."""
    columns = (
        ("tok/s", "throughput"), ("TTFT p50", "ttft_p50"), ("TPOT p50", "tpot_p50"),
        ("E2E p50", "e2e_p50"), ("batch", "batch"), ("good", "goodput"), ("cut", "unfinished"),
    )  # fmt: skip
    return _by_load(points, losses, columns)


def _by_load(
    points: Sequence[Point], losses: Sequence[Loss], columns: Sequence[tuple[str, str]]
) -> Table:
    head = ("load", "system", *(title for title, _ in columns), "verdict")
    rows = []
    for load in sorted({p.load for p in points}):
        here = [p for p in points if p.load == load]
        measured = {p.system for p in here}
        cells = [
            (f"{load:g}", p.system, *(_cell(p, figure) for _, figure in columns), p.verdict)
            for p in here
        ]
        cells += [
            (f"{load:g}", loss.system, *["-"] * len(columns), FAILED)
            for loss in losses
            if loss.system not in measured
        ]
        rows += [Row(line, first=number == 0) for number, line in enumerate(cells)]
    return Table(head, rows, left=2)


def _cell(p: Point, figure: str) -> str:
    """A figure in words; marked if the client's lateness invalidated it."""
    if figure == "unfinished":
        return str(p.unfinished)
    if not p.usable:
        return "-"
    return _text(p, figure) + (VOID if p.void(figure) is not None else "")


def _text(p: Point, figure: str) -> str:
    if figure == "throughput":
        return f"{p.throughput.value:,.0f}"
    if figure == "batch":
        return "-" if p.batch_mean is None else f"{p.batch_mean:.1f}"
    if figure == "jain":
        return "-" if p.fairness is None else f"{p.fairness.jain:.2f}"
    if figure == "goodput":
        return "-" if p.attained is None else f"{p.attained:.0%}"
    name, _, rank = figure.partition("_p")
    return seconds(p.latency(name, float(rank))) if p.latency_n[name] else "-"


def limit_table(found: Headline) -> Table:
    """Each system where it delivered most: the figures, what they rest on, and its ratios to
    those before it."""
    over = [x.system for x in found.limits[:-1]]
    ratios = {(r.of, r.over): r.throughput for r in found.limit_ratios}
    rows = [
        Row(
            (
                x.system, f"{x.load:g}", f"{x.throughput.value:,.0f}", f"{x.requests:,}",
                f"{x.seconds:.0f} s", *(ratio_text(ratios.get((x.system, o))) for o in over),
            )
        )
        for x in found.limits
    ]  # fmt: skip
    head = ("at its limit", "load", "tok/s", "requests ended", "in", *(f"/ {o}" for o in over))
    return Table(head, rows)


def pair_table(found: Headline) -> Table:
    """Every two systems that both keep up, and each control against itself."""
    rows = []
    before: float | None = None
    pairs = [*((p, f"{p.of} / {p.over}") for p in found.pairs),
             *((p, f"control: {p.of} / itself") for p in found.controls)]  # fmt: skip
    for p, name in sorted(pairs, key=lambda pair: pair[0].load):
        ratios = (p.ttft, p.tpot, p.e2e, p.throughput)
        rows.append(Row((f"{p.load:g}", name, *map(ratio_text, ratios)), first=p.load != before))
        before = p.load
    head = ("load", "ratio", "TTFT p50", "TPOT p50", "E2E p50", "tok/s of a saturated control")
    return Table(head, rows, left=2)


def control_text(control: Pair) -> str:
    """A system against itself, in words: how much the machine alone changes a figure."""
    ratios = (("output tokens/s", control.throughput), ("TTFT", control.ttft),
              ("E2E", control.e2e))  # fmt: skip
    told = ", ".join(f"{name} {ratio_text(r)}" for name, r in ratios if r is not None)
    return f"Control, {control.of} against itself at load {control.load:g}: {told}."


def fairness_table(points: Sequence[Point]) -> Table:
    """Mean slowdown by output length, as far as there are enough answers of each size."""
    rows = []
    before: float | None = None
    for p in points:
        if p.fairness is None or not p.usable:
            continue
        cells = [f"{b.mean:.2f} ({b.low}..{b.high} tokens)" for b in p.fairness.buckets]
        line = (f"{p.load:g}", p.system, f"{p.fairness.jain:.2f}", *cells)
        rows.append(Row(line, first=p.load != before))
        before = p.load
    fifths = ("shortest fifth", "second", "third", "fourth", "longest fifth")
    return Table(("load", "system", "Jain", *fifths), rows, left=2)


def ratio_text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f} (one seed)"
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
