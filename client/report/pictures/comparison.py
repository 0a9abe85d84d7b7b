"""The comparison's pictures: latency by size, throughput and latency over the loads, one run.

Draws what analysis and records hold; computes nothing new but medians of what it draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from client.analysis.comparison.results import Result
from client.analysis.comparison.summary import Point, final, names_of
from client.analysis.figures import Figure
from client.analysis.gates import SATURATED, VALID
from client.analysis.statistics import Floats, Interval, least_n
from client.report.html.chart import Axis, Band, Chart, Mark, Polyline, Shape
from client.report.html.page import seconds
from client.report.pictures import requests
from client.report.pictures.gantt import pictured
from client.report.pictures.requests import Asked

_KNOWN = {"nobatch": "#5b6472", "static": "#d1603d", "dynamic": "#1f77b4"}
_OTHERS = ("#5e9c51", "#8f5fa8", "#a88a12", "#b0446f", "#3d8f8f")


def colour(name: str, names: Sequence[str]) -> str:
    """A system's colour, the same in every picture."""
    others = [n for n in names if n not in _KNOWN]
    return _KNOWN.get(name) or _OTHERS[others.index(name) % len(_OTHERS)]


def telling_load(points: Sequence[Point]) -> float:
    """The most informative load: the highest that all systems ran and with which some keep up,
    otherwise the highest with which one does, otherwise the lowest."""
    loads = sorted({p.load for p in points}, reverse=True)
    sustained = [x for x in loads if any(p.load == x and p.verdict == VALID for p in points)]
    everyone = len(names_of(points))
    whole = [x for x in sustained if sum(p.load == x for p in points) == everyone]
    return (whole or sustained or loads[-1:])[0]


def asked(points: Sequence[Point], results: Sequence[Result]) -> list[Asked]:
    """What each system was asked in these runs, the systems in the order of the table."""
    names = names_of(points)
    runs = {name: [r for r in results if r.job.system == name] for name in names}
    return [
        Asked(name, colour(name, names), [(r.job.seed, o) for r in mine for o in r.run.outcomes])
        for name, mine in runs.items()
    ]


def by_tokens(points: Sequence[Point], results: Sequence[Result], load: float) -> Chart:
    """Every system's requests at one load, of all seeds."""
    here = [r for r in final(results) if r.job.load == load]
    return requests.by_tokens(f"Latency by requested tokens, load {load:g}", asked(points, here))


def throughput(points: Sequence[Point]) -> Chart:
    """Output tokens a second over the offered load, with the intervals over seeds."""
    drawn, most = [], dict[str, float]()
    for p in points:
        drawn.append((p, p.throughput, f"{p.throughput.value:.0f} tokens/s, {p.verdict}"))
        if p.usable:
            most[p.system] = max(most.get(p.system, 0.0), p.throughput.value)
    reached = [f"{name} reaches {value:.0f} tokens a second" for name, value in most.items()]
    finding = "; ".join(reached) or "No run gave a throughput."
    best = max((p.throughput.value for p in points), default=0.0)
    # Two seeds can give an interval that would flatten everything else; it is cut at the axis.
    y = Axis("output tokens a second", low=0.0, high=1.25 * best or None)
    return _over_loads(points, "Throughput", finding, y, "shade: 95 % interval", drawn)


def latency(points: Sequence[Point], figure: Figure) -> Chart:
    """The median over the offered load, shaded up to the tail that n supports."""
    tail = tail_of([p.latencies[figure.key].size for p in points])
    drawn, medians = [], []
    for p in points:
        median = p.latency(figure.key, 50)
        if p.usable and median is not None:
            told = "more than half were cut before it"
            if math.isfinite(median):
                told = f"median {seconds(median)}, {p.verdict}"
            drawn.append((p, Interval(median, median, p.latency(figure.key, tail)), told))
            medians.append(f"{p.system} at load {p.load:g}: {told}")
    finding = f"{figure.name}, medians: {'; '.join(medians)}"
    y = Axis("from the intended time", log=True, text=seconds)
    note = f"line: median, shade: up to p{tail:g}"
    return _over_loads(points, figure.name, finding, y, note, drawn)


def _over_loads(
    points: Sequence[Point],
    title: str,
    finding: str,
    y: Axis,
    note: str,
    drawn: Sequence[tuple[Point, Interval, str]],
) -> Chart:
    """A line and a shade a system, with a tooltip for each point that is ``drawn``; one that is not
    usable is beside the line."""
    names = names_of(points)
    ends = [end for _, found, _ in drawn for end in (found.value, found.high)]
    top = max((end for end in ends if end is not None and math.isfinite(end)), default=1.0)
    lines, bands, marks = [], [], []
    for name in names:
        c = colour(name, names)
        usable = [(p.load, found) for p, found, _ in drawn if p.system == name and p.usable]
        lines.append(Polyline([(x, found.value) for x, found in usable], c, name))
        shade = [(x, f.low, f.high) for x, f in usable if f.low is not None and f.high is not None]
        bands.append(Band([edges for edges in shade if all(map(math.isfinite, edges))], c))
    for p, found, told in drawn:
        shape = {VALID: Shape.DOT, SATURATED: Shape.HOLLOW}.get(p.verdict, Shape.CROSS)
        tip = f"{p.system} at load {p.load:g}: {told}"
        if math.isinf(found.value):
            shape = Shape.AT_LEAST
        marks.append(Mark(p.load, min(found.value, top), colour(p.system, names), tip, shape))
    if any(p.verdict == SATURATED for p in points):
        note += ", hollow: saturated"
    unit = points[0].offered / points[0].load
    loads = sorted({p.load for p in points})
    x = Axis(f"offered load (1 = {unit:.3g} requests/s)", log=True, ticks=loads)
    return Chart(title, finding, x, y, lines, bands, marks, note=note)


def over_time(points: Sequence[Point], results: Sequence[Result], load: float) -> list[Chart]:
    """One seed at one load: how many rows each iteration had, and the latency of each request."""
    names = names_of(points)
    shown = sorted(
        (r for r in pictured(results) if r.job.load == load),
        key=lambda r: names.index(r.job.system),
    )
    rows = []
    for r in shown:
        t, y = batch_sizes(r)
        if t.size:
            steps = list(zip(t.tolist(), y.tolist(), strict=True))
            rows.append(Polyline(steps, colour(r.job.system, names), r.job.system, steps=True))
    each = requests.over_time(f"Latency of each request, load {load:g}", asked(points, shown))
    if not rows:
        return [each]
    most = ", ".join(f"{line.label} {max(y for _, y in line.points):.0f}" for line in rows)
    batches = Chart(
        title=f"Rows in each iteration, load {load:g}",
        finding=f"Largest batch at load {load:g}: {most}.",
        x=Axis("seconds since the run began"),
        y=Axis("rows", low=0.0),
        lines=rows,
    )
    return [batches, each]


def batch_sizes(result: Result) -> tuple[Floats, Floats]:
    """When each iteration began, from the run's start, and its rows; empty where not known.

    The server's clock is not the client's: its first iteration is aligned with the first send.
    """
    table = result.iterations or {}
    columns, lines = table.get("columns", []), table.get("iterations", [])
    if not lines or "start_s" not in columns or "rows" not in columns or not result.run.outcomes:
        return np.zeros(0), np.zeros(0)
    values = np.array(lines, dtype=np.float64)
    start, rows = values[:, columns.index("start_s")], values[:, columns.index("rows")]
    first_sent = min(o.sent_s for o in result.run.outcomes)
    ends = start + values[:, columns.index("duration_s")] if "duration_s" in columns else start
    # Nothing runs between iterations: the line drops to 0 during a pause.
    t: list[float] = []
    y: list[float] = []
    for k in range(start.size):
        if not y or rows[k] != y[-1]:
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
