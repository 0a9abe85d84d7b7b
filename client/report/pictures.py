"""Pictures as SVG, in one style: a comparison's latency by size, throughput and latency over loads.

Draws what analysis and records hold; computes nothing new but medians of what it draws.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from client.analysis.comparison.results import Headline
from client.analysis.comparison.summary import Point, names_of, planned, tail_of
from client.analysis.figures import Figure
from client.analysis.gates import SATURATED, VALID
from client.analysis.statistics import Floats, Interval
from client.report.words import number, seconds

STYLE: dict[Any, Any] = {
    "figure.dpi": 110, "savefig.dpi": 130, "font.size": 10, "axes.grid": True, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "legend.frameon": False, "axes.axisbelow": True,
    "text.parse_math": False, "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same figures, the same file
}  # fmt: skip
_WIDTH, _HEIGHT, _LEFT = 5.6, 3.6, 0.85  # of a panel in inches, and of the labels beside it
Panel = Callable[[Axes], None]
_KNOWN = {"nobatch": "#5b6472", "static": "#d1603d", "dynamic": "#1f77b4"}
_OTHERS = ("#5e9c51", "#8f5fa8", "#a88a12", "#b0446f", "#3d8f8f")
_DRAWN = 600  # points of one system in one picture; more would only make the file larger
_SINCE = "from the intended time"


@dataclass(frozen=True, slots=True)
class Picture:
    """``title`` is the alternative text: tables beside pictures hold the figures."""

    title: str
    svg: str


def drawn(title: str, *panels: Panel) -> Picture:
    """Panels side by side."""
    width = _WIDTH * len(panels)
    with mpl.rc_context(STYLE):
        figure = Canvas((width, _HEIGHT))
        # a layout that looks for its margins takes twice as long
        for k, panel in enumerate(panels):
            left, within = (k * _WIDTH + _LEFT) / width, (_WIDTH - _LEFT - 0.1) / width
            panel(figure.add_axes((left, 0.55 / _HEIGHT, within, 1 - 0.9 / _HEIGHT)))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return Picture(title, text[text.index("<svg") :])


def named(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def in_seconds(axis: Axis) -> None:
    """Labels of a logarithmic axis, which is one already; side by side, fewer have room."""
    low, high = axis.get_view_interval()
    crowded = isinstance(axis, XAxis) and high > 100 * low
    axis.set_major_locator(LogLocator(subs=(1,) if crowded else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))


def colour(name: str, names: Sequence[str]) -> str:
    """A system's colour, the same in every picture."""
    others = [n for n in names if n not in _KNOWN]
    return _KNOWN.get(name) or _OTHERS[others.index(name) % len(_OTHERS)]


def bars(found: Headline, names: Sequence[str]) -> Picture:
    """What each system delivered at its limit, with the interval over seeds."""
    at = {limit.system: limit.throughput for limit in found.limits}
    shown = [name for name in names if name in at]
    title = "Output tokens a second, each at its limit"

    def panel(axes: Axes) -> None:
        named(axes, title, "", "")
        axes.invert_yaxis()
        axes.grid(visible=False)
        for row, name in enumerate(shown):
            of = at[name]
            axes.barh(row, of.value, color=colour(name, names), height=0.6)
            if of.low is not None and of.high is not None:
                axes.plot([of.low, of.high], [row, row], color="#222", lw=1.2)
            end = max(of.value, of.high or 0.0)
            axes.annotate(
                number(of.value), (end, row), (6, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(shown)), shown)
        axes.set_xlim(0, 1.2 * max(max(of.value, of.high or 0.0) for of in at.values()))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)

    return drawn(title, panel)


def sizes(points: Sequence[Point], load: float) -> Picture:
    """The original's figure: latency against requested tokens, a line through the medians; the
    requests of all seeds. Triangles were cut, and would have taken longer."""
    title = f"Latency by requested tokens, load {load:g}"

    def panel(axes: Axes) -> None:
        named(axes, title, "requested tokens", f"end of the response, {_SINCE}")
        axes.set_yscale("log")
        for p in (p for p in points if p.load == load):
            shade = colour(p.system, names_of(points))
            rows = np.concatenate([r.measured.requests.rows for r in planned(p.runs)])
            tokens, ok = rows["requested_tokens"], rows["ok"]
            # of a request without an end, as long as it had waited
            waited = np.where(ok, rows["end_s"], rows["left_s"]) - rows["origin_s"]
            waited = np.maximum(waited, 1e-4)
            drawn_too = np.arange(len(rows)) % math.ceil(len(rows) / _DRAWN) == 0
            for marker, size, kind in (("o", 9, ok), ("^", 24, rows["unfinished"])):
                x, y = tokens[kind & drawn_too], waited[kind & drawn_too]
                axes.scatter(x, y, s=size, color=shade, marker=marker, alpha=0.5)
            if ok.any():
                at_x, low, middle, high = _quartiles(tokens[ok], waited[ok])
                axes.plot(at_x, middle, color=shade, label=p.system)
                axes.fill_between(at_x, low, high, color=shade, alpha=0.16, lw=0)
        in_seconds(axes.yaxis)
        if axes.get_lines():
            axes.legend()

    return drawn(title, panel)


def _quartiles(x: Floats, y: Floats) -> Floats:
    """Mean size and quartiles of the latency, of up to ten groups of equal numbers, as columns."""
    parts = np.array_split(np.argsort(x, kind="stable"), max(1, min(10, x.size // 8)))
    return np.array([[x[p].mean(), *np.quantile(y[p], (0.25, 0.5, 0.75))] for p in parts]).T


def throughput(points: Sequence[Point]) -> Picture:
    """Output tokens a second over the offered load, with the intervals over seeds."""

    def panel(axes: Axes) -> None:
        named(axes, "Throughput", "", "output tokens a second")
        _over_loads(axes, points, [(p, p.throughput) for p in points])
        # two seeds can give an interval that would flatten everything else; it is cut
        axes.set_ylim(0, 1.25 * max(p.throughput.value for p in points) or None)

    return drawn("Throughput over the load", panel)


def latency(points: Sequence[Point], figure: Figure) -> Picture:
    """The median over the offered load, shaded up to the tail that n supports."""
    tail = tail_of([p.latencies[figure.key].size for p in points])
    found = [
        (p, Interval(median, median, p.latency(figure.key, tail)))
        for p in points
        if p.usable and (median := p.latency(figure.key, 50)) is not None
    ]
    title = f"{figure.name}, median, shaded up to p{tail:g}"

    def panel(axes: Axes) -> None:
        named(axes, title, "", _SINCE)
        axes.set_yscale("log")
        _over_loads(axes, points, found)
        in_seconds(axes.yaxis)

    return drawn(f"{title}, over the load", panel)


def _over_loads(
    axes: Axes, points: Sequence[Point], found: Sequence[tuple[Point, Interval]]
) -> None:
    """A line and a shade a system. Hollow: saturated; a cross: not usable, beside the line; a
    triangle at the top: more than half were cut."""
    loads = sorted({p.load for p in points})
    axes.set_xscale("log")
    axes.set_xticks(loads, [f"{load:g}" for load in loads])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"offered load (1 = {points[0].offered / points[0].load:.3g} requests/s)")
    for name in (names := names_of(points)):
        shade = colour(name, names)
        line = [(p.load, f) for p, f in found if p.system == name and p.usable]
        known = [(x, f) for x, f in line if math.isfinite(f.value)]
        axes.plot([x for x, _ in known], [f.value for _, f in known], color=shade, label=name)
        sure = [(x, f.low, f.high) for x, f in known if f.low is not None and f.high is not None]
        sure = [edges for edges in sure if math.isfinite(edges[2])]
        if sure:
            x, low, high = zip(*sure, strict=True)
            axes.fill_between(x, low, high, color=shade, alpha=0.16, lw=0)
    for p, of in found:
        shade, top = colour(p.system, names), math.isinf(of.value)
        axes.plot(
            [p.load], [0.98 if top else of.value],
            "^" if top else "o" if p.usable else "x",
            color=shade, markerfacecolor=shade if p.verdict == VALID else "white",
            transform=axes.get_xaxis_transform() if top else axes.transData,
        )  # fmt: skip
    axes.legend(title="hollow: saturated" if any(p.verdict == SATURATED for p in points) else None)
