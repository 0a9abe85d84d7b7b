"""The comparison's tables: figures, ratios with their intervals, fairness by size.

Turns what summary holds into cells; computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from client.analysis.gates import FAILED
from client.analysis.results import Loss
from client.analysis.statistics import Interval
from client.analysis.summary import Point
from client.report import plots
from client.report.html import Row, Table, seconds


def comparison_table(table_points: Sequence[Point], losses: Sequence[Loss]) -> Table:
    """One row a contestant and load; those that a failed contestant did not reach say so."""
    tail = plots.tail_of([p.latency_n["e2e"] for p in table_points])
    with_goal = any(p.goodput is not None for p in table_points)
    head = (
        "load", "contestant", "tok/s", "vs first (95 % CI)", "TTFT p50", f"TTFT p{tail:g}",
        "TPOT p50", "E2E p50", f"E2E p{tail:g}", "batch", "Jain",
        *(["good/s"] if with_goal else []),
        "unfinished", "verdict",
    )  # fmt: skip
    rows = []
    for load in sorted({p.load for p in table_points}):
        here = [p for p in table_points if p.load == load]
        measured = {p.contestant for p in here}
        cells = [_cells(p, tail, with_goal=with_goal) for p in here]
        cells += [
            (f"{load:g}", loss.contestant, *["-"] * (len(head) - 3), FAILED)
            for loss in losses
            if loss.contestant not in measured
        ]
        rows += [Row(line, first=number == 0) for number, line in enumerate(cells)]
    return Table(head, rows, left=2)


def _cells(p: Point, tail: float, *, with_goal: bool) -> tuple[str, ...]:
    return (
        f"{p.load:g}",
        p.contestant,
        f"{p.throughput.value:.0f}" if p.usable else "-",
        ratio_text(p.throughput_ratio),
        *(seconds(p.latency(k, q)) if p.usable else "-" for k, q in (
            ("ttft", 50), ("ttft", tail), ("tpot", 50), ("e2e", 50), ("e2e", tail))),
        f"{p.batch_mean:.1f}" if p.usable and p.batch_mean is not None else "-",
        f"{p.fairness.jain:.2f}" if p.usable and p.fairness is not None else "-",
        *([f"{p.goodput or 0:.2f}" if p.usable else "-"] if with_goal else []),
        str(p.unfinished),
        p.verdict,
    )  # fmt: skip


def ratio_table(table_points: Sequence[Point]) -> Table:
    """Each contestant against the first, paired over seeds; empty where there is only one."""
    rows = []
    before: float | None = None
    for p in table_points:
        ratios = (p.throughput_ratio, p.ttft_ratio, p.e2e_ratio)
        if all(r is None for r in ratios):
            continue
        cells = (f"{p.load:g}", p.contestant, *(ratio_text(r) for r in ratios))
        rows.append(Row(cells, first=p.load != before))
        before = p.load
    return Table(("load", "contestant", "throughput", "TTFT p50", "E2E p50"), rows, left=2)


def fairness_table(table_points: Sequence[Point]) -> Table:
    """Mean slowdown by output length, as far as there are enough answers of each size."""
    rows = []
    before: float | None = None
    for p in table_points:
        if p.fairness is None or not p.usable:
            continue
        cells = [f"{b.mean:.2f} ({b.low}..{b.high} tokens)" for b in p.fairness.buckets]
        line = (f"{p.load:g}", p.contestant, f"{p.fairness.jain:.2f}", *cells)
        rows.append(Row(line, first=p.load != before))
        before = p.load
    fifths = ("shortest fifth", "second", "third", "fourth", "longest fifth")
    return Table(("load", "contestant", "Jain", *fifths), rows, left=2)


def ratio_text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f} (one seed)"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
