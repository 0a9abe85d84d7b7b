"""Tables for pages and terminals: the figures of a comparison, ratios, servers' /stats.

It turns what the analysis found into cells, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from client.analysis.comparison.results import Headline, Loss, Pair
from client.analysis.comparison.summary import TAIL, Point, mean_of, stated, tail_of
from client.analysis.figures import E2E, PAIRED, THROUGHPUT, TPOT, TTFT, Figure
from client.analysis.gates import FAILED
from client.report.words import ratio_text, seconds

VOID = "*"  # marks a void figure
_COUNT = "unfinished"  # is shown for runs whose figures are not usable, too


def rendered(template: str, **values: Any) -> str:
    """A report from its template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=".html" in template, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(values)


@dataclass(frozen=True, slots=True)
class Table:
    """``left`` columns are aligned to the left, the rest to the right. The rows ``ruled`` have a
    line above."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    caption: str = ""
    ruled: Sequence[int] = ()

    def as_text(self) -> str:
        """The same for a terminal."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        made = []
        for number, line in enumerate(lines):
            if number > 1 and number - 1 in self.ruled:
                made.append("")
            cells = [
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            made.append("  ".join(cells).rstrip())
        return "\n".join(made)


def grouped(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """With a line above the rows whose first cell is not that of the row before."""
    ruled = [k for k, row in enumerate(rows) if not k or row[0] != rows[k - 1][0]]
    return Table(head, rows, left=2, ruled=ruled)


@dataclass(frozen=True, slots=True)
class Column:
    """``figure`` names what makes a cell void."""

    title: str
    figure: str
    text: Callable[[Point], str]


def comparison_table(
    points: Sequence[Point], losses: Sequence[Loss], *, short: bool = False
) -> Table:
    """One row a system and load; those that a failed system did not reach say so."""
    tail = tail_of([p.latencies["e2e"].size for p in points])
    ranks: tuple[float, ...] = (50,) if short else (50, tail)  # those that fit on a terminal's line
    columns = [
        Column(THROUGHPUT.name, THROUGHPUT.key, lambda p: f"{p.throughput.value:,.0f}"),
        *(_latency(TTFT, rank) for rank in ranks),
        _latency(TPOT, 50),
        *(_latency(E2E, rank) for rank in ranks),
        Column("batch", "", lambda p: "-" if p.batch is None else f"{p.batch:.1f}"),
        Column("good", "goodput", lambda p: "-" if p.attained is None else f"{p.attained:.0%}"),
        Column("cut", _COUNT, lambda p: str(p.unfinished)),
    ]
    rows: list[Sequence[str]] = []
    for load in sorted({p.load for p in points}):
        here = [p for p in points if p.load == load]
        rows += [
            (f"{load:g}", p.system, *(_cell(p, column) for column in columns), p.verdict)
            for p in here
        ]
        rows += [
            (f"{load:g}", loss.system, *["-"] * len(columns), FAILED)
            for loss in losses
            if loss.system not in {p.system for p in here}
        ]
    head = ("load", "system", *(column.title for column in columns), "verdict")
    return grouped(head, rows)


def _latency(figure: Figure, rank: float) -> Column:
    def text(p: Point) -> str:
        return seconds(p.latency(figure.key, rank)) if p.latencies[figure.key].size else "-"

    return Column(f"{figure.name} p{rank:g}", f"{figure.key}_p{rank:g}", text)


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
    latencies = PAIRED[1:]
    pairs = [*((p, f"{p.of} / {p.over}") for p in found.pairs),
             *((p, f"control: {p.of} / itself") for p in found.controls)]  # fmt: skip
    rows = []
    for p, name in sorted(pairs, key=lambda pair: pair[0].load):
        ratios = [
            ratio
            for figure in latencies
            for ratio in (p.ratios[figure.key], p.ratios.get(f"{figure.key}_p{TAIL}"))
        ]
        cells = map(ratio_text, (*ratios, p.ratios[THROUGHPUT.key]))
        rows.append((f"{p.load:g}", name, *cells))
    titles = (f"{figure.name} p{rank}" for figure in latencies for rank in (50, TAIL))
    head = ("load", "ratio", *titles, f"{THROUGHPUT.name} of a saturated control")
    return grouped(head, rows)


def control_text(control: Pair) -> str:
    """A system against itself, in words: how much the machine alone changes a figure."""
    ratios = ((figure.name, control.ratios[figure.key]) for figure in (THROUGHPUT, TTFT, E2E))
    parts = ", ".join(f"{name} {ratio_text(r)}" for name, r in ratios if r is not None)
    return f"Control, {control.of} against itself at load {control.load:g}: {parts}."


def server_table(columns: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], caption: str) -> Table:
    """A column a server, the mean over its runs; a figure that none of them states is left out."""
    rows = []
    for title, path, text in _SERVER_ROWS:
        found = [mean_of([stated(stats, *path) for stats in runs]) for _, runs in columns]
        if any(value is not None for value in found):
            rows.append((title, *("-" if v is None else text(v) for v in found)))
    head = ("the server's own figures", *(name for name, _ in columns))
    return Table(head, rows, caption=caption)


_SERVER_ROWS: tuple[tuple[str, tuple[str, ...], Callable[[float], str]], ...] = (
    ("output tokens per busy second", ("throughput",), "{:,.0f}".format),
    ("latency per token, mean", ("latency-per-token",), seconds),
    ("latency (E2E), median", ("e2e-s", "p50"), seconds),
    ("latency (E2E), p90", ("e2e-s", "p90"), seconds),
    ("time to first token, median", ("ttft-s", "p50"), seconds),
    ("of it in the queue, median", ("queue-s", "p50"), seconds),
    ("rows in an iteration, mean", ("batch-size", "mean"), "{:.1f}".format),
    ("padding in computed positions", ("padding-share",), "{:.0%}".format),
    ("busy time inside the model", ("model-share",), "{:.0%}".format),
    ("requests completed", ("counts", "completed"), "{:,.0f}".format),
    ("output tokens", ("total-tokens-handled",), "{:,.0f}".format),
)
