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
from client.analysis.statistics import Floats, least_n
from client.load.records import Outcome
from client.report.html.chart import Axis, Band, Chart, Line, Mark, Shape
from client.report.html.page import seconds

_KNOWN = {"nobatch": "#5b6472", "static": "#d1603d", "dynamic": "#1f77b4"}
_OTHERS = ("#5e9c51", "#8f5fa8", "#a88a12", "#b0446f", "#3d8f8f")
_DRAWN = 600  # points of one system in one picture; more would only make the file larger


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


def by_tokens(points: Sequence[Point], results: Sequence[Result], load: float) -> Chart:
    """Every system's requests at one load, of all seeds."""
    names = names_of(points)
    groups = []
    for name in names:
        mine = [r for r in final(results) if (r.job.system, r.job.load) == (name, load)]
        asked = [(r.job.seed, o) for r in mine for o in r.run.outcomes]
        groups.append((name, colour(name, names), asked))
    return latency_by_tokens(f"Latency by requested tokens, load {load:g}", groups)


def latency_by_tokens(
    title: str, groups: Sequence[tuple[str, str, Sequence[tuple[int, Outcome]]]]
) -> Chart:
    """The original's figure: latency against requested tokens, a line through the medians.

    Each group has a name, a colour and its requests with their seeds. Requests that were cut are
    drawn at the time they had waited by then.
    """
    lines, bands, marks, medians = [], [], [], []
    for name, c, asked in groups:
        marks += [_request(o, seed, name, c) for seed, o in _thinned(asked) if o.ok or o.unfinished]
        done = [o for _, o in asked if o.ok]
        cut = sum(o.unfinished for _, o in asked)
        if not done:
            continue
        x = np.array([o.requested_tokens for o in done], dtype=np.float64)
        y = np.array([_e2e(o) for o in done])
        bins = _binned(x, y)
        label = f"{name}, {cut} cut" if cut else name
        lines.append(Line([(at, middle) for at, _, middle, _ in bins], c, label))
        bands.append(Band([(at, low, high) for at, low, _, high in bins], c))
        medians.append(f"{name} {seconds(float(np.median(y)))}" + (f" ({cut} cut)" if cut else ""))
    return Chart(
        title=title,
        finding=f"{title}; medians: {', '.join(medians) or 'no responses'}.",
        x=Axis("requested tokens", low=0.0),
        y=Axis("intended time to end of response", log=True, text=seconds),
        lines=lines, bands=bands, marks=marks,
        note="line: median, shade: middle half"
        + (", triangle: cut" if any(m.shape is Shape.AT_LEAST for m in marks) else ""),
    )  # fmt: skip


def _request(o: Outcome, seed: int, name: str, c: str) -> Mark:
    if o.ok:
        tip = f"{name}, seed {seed}, request {o.index}: {o.requested_tokens} tokens"
        if o.first_s is not None:
            tip += f", first after {seconds(o.first_s - o.origin_s)}"
        tip += f", all after {seconds(_e2e(o))}"
        return Mark(o.requested_tokens, _e2e(o), c, tip, small=True)
    waited = max(o.left_s - o.origin_s, 1e-4)
    tip = f"{name}, seed {seed}, request {o.index}: cut after {seconds(waited)}"
    return Mark(o.requested_tokens, waited, c, tip, Shape.AT_LEAST)


def throughput(points: Sequence[Point]) -> Chart:
    """Output tokens a second over the offered load, with the intervals over seeds."""
    names = names_of(points)
    lines, bands, marks = [], [], []
    for name in names:
        c = colour(name, names)
        mine = [p for p in points if p.system == name and p.usable]
        lines.append(Line([(p.load, p.throughput.value) for p in mine], c, name))
        bands.append(
            Band(
                [
                    (p.load, p.throughput.low, p.throughput.high)
                    for p in mine
                    if p.throughput.low is not None and p.throughput.high is not None
                ],
                c,
            )
        )
        for p in (p for p in points if p.system == name):
            tip = f"{name} at load {p.load:g}: {p.throughput.value:.0f} tokens/s, {p.verdict}"
            marks.append(Mark(p.load, p.throughput.value, c, tip, _shape(p)))
    best = max((m.y for m in marks), default=0.0)
    return Chart(
        title="Throughput",
        finding="; ".join(
            f"{line.label} reaches {max(y for _, y in line.points):.0f} tokens a second"
            for line in lines
            if line.points
        ) or "No run gave a throughput.",
        x=_loads(points),
        # Two seeds can give an interval that would flatten everything else; it is cut at the axis.
        y=Axis("output tokens a second", low=0.0, high=1.25 * best or None),
        lines=lines, bands=bands, marks=marks, note=_note(points, "shade: 95 % interval"),
    )  # fmt: skip


def latency(points: Sequence[Point], figure: Figure) -> Chart:
    """The median over the offered load, shaded up to the tail that n supports."""
    key, title = figure.key, figure.name
    names = names_of(points)
    tail = tail_of([p.latencies[key].size for p in points])
    known = [_finite(p.latency(key, q)) for p in points for q in (50, tail)]
    top = max((v for v in known if not math.isnan(v)), default=1.0)
    lines, bands, marks = [], [], []
    for name in names:
        c = colour(name, names)
        mine = [p for p in points if p.system == name and p.usable]
        medians = [(p, p.latency(key, 50)) for p in mine]
        lines.append(Line([(p.load, _finite(v)) for p, v in medians], c, name))
        shade = [(p.load, _finite(v), _finite(p.latency(key, tail))) for p, v in medians]
        bands.append(Band([s for s in shade if not any(map(math.isnan, s))], c))
        for p, value in medians:
            if value is None:
                continue
            if math.isinf(value):
                tip = f"{name} at load {p.load:g}: more than half were cut before it"
                marks.append(Mark(p.load, top, c, tip, Shape.AT_LEAST))
            else:
                tip = f"{name} at load {p.load:g}: median {seconds(value)}, {p.verdict}"
                marks.append(Mark(p.load, value, c, tip, _shape(p)))
    return Chart(
        title=title,
        finding=f"{title}, medians: " + "; ".join(m.tip for m in marks),
        x=_loads(points),
        y=Axis("from the intended time", log=True, text=seconds),
        lines=lines, bands=bands, marks=marks,
        note=_note(points, f"line: median, shade: up to p{tail:g}"),
    )  # fmt: skip


def over_time(points: Sequence[Point], results: Sequence[Result], load: float) -> list[Chart]:
    """One seed at one load: how many rows each iteration had, and the latency of each request."""
    names = names_of(points)
    here = [r for r in final(results) if r.job.load == load]
    seed = min((r.job.seed for r in here), default=0)
    shown = sorted((r for r in here if r.job.seed == seed), key=lambda r: names.index(r.job.system))
    rows, marks = [], []
    for r in shown:
        c = colour(r.job.system, names)
        t, y = batch_sizes(r)
        if t.size:
            rows.append(Line(list(zip(t.tolist(), y.tolist(), strict=True)), c, r.job.system,
                             steps=True))  # fmt: skip
        for _, o in _thinned([(seed, o) for o in r.run.outcomes if o.ok or o.unfinished]):
            value = _e2e(o) if o.ok else max(o.left_s - o.origin_s, 1e-4)
            tip = (
                f"{r.job.system}, request {o.index}: {'' if o.ok else 'cut after '}{seconds(value)}"
            )
            shape = Shape.DOT if o.ok else Shape.AT_LEAST
            marks.append(Mark(o.origin_s, value, c, tip, shape, small=True))
    most = ", ".join(f"{line.label} {max(y for _, y in line.points):.0f}" for line in rows)
    charts = []
    if rows:
        charts.append(
            Chart(
                title=f"Rows in each iteration, load {load:g}",
                finding=f"Largest batch at load {load:g}: {most}.",
                x=Axis("seconds since the run began"),
                y=Axis("rows", low=0.0),
                lines=rows,
            )
        )
    charts.append(
        Chart(
            title=f"Latency of each request, load {load:g}",
            finding=f"The end-to-end latency of {len(marks)} requests by their intended time.",
            x=Axis("intended time in seconds"),
            y=Axis("intended time to end of response", log=True, text=seconds),
            marks=marks,
            note="triangle: cut, took longer",
        )
    )
    return charts


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


def _e2e(o: Outcome) -> float:
    return (o.end_s or 0.0) - o.origin_s


def _thinned(asked: Sequence[tuple[int, Outcome]]) -> Sequence[tuple[int, Outcome]]:
    return asked[:: max(1, math.ceil(len(asked) / _DRAWN))]


def _binned(x: Floats, y: Floats) -> list[tuple[float, float, float, float]]:
    """Mean size, and quartiles of the latency, of up to ten groups of equal numbers."""
    parts = np.array_split(np.argsort(x, kind="stable"), max(1, min(10, x.size // 8)))
    return [(float(x[p].mean()), *np.quantile(y[p], (0.25, 0.5, 0.75)).tolist()) for p in parts]


def _shape(p: Point) -> Shape:
    return {VALID: Shape.DOT, SATURATED: Shape.HOLLOW}.get(p.verdict, Shape.CROSS)


def _note(points: Sequence[Point], text: str) -> str:
    return text + (", hollow: saturated" if any(p.verdict == SATURATED for p in points) else "")


def _loads(points: Sequence[Point]) -> Axis:
    loads = sorted({p.load for p in points})
    unit = points[0].offered / points[0].load
    title = f"offered load (1 = {unit:.3g} requests/s)"
    return Axis(title, log=True, ticks=loads)


def _finite(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else value
