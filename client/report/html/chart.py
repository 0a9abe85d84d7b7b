"""Charts as SVG: scales, axes, labels at the lines, a tooltip for each point.

Independent of what is drawn. A chart is plain data; ``draw`` returns complete markup, for a page as
well as a file. No scripts: tooltips are the browser's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import jinja2

WIDTH, HEIGHT = 520, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 506, 48, 290
_LABEL_PX = 15  # between two labels
_LETTER_PX = 6.6

XY = tuple[float, float]


class Shape(Enum):
    """``AT_LEAST`` points upwards: the exact value is unknown, but larger."""

    DOT = "dot"
    HOLLOW = "hollow"
    AT_LEAST = "at least"
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class Mark:
    """One point with its tooltip."""

    x: float
    y: float
    colour: str
    tip: str
    shape: Shape = Shape.DOT
    small: bool = False


@dataclass(frozen=True, slots=True)
class Polyline:
    """``label`` is at its end. A point that is not finite interrupts it."""

    points: Sequence[XY]
    colour: str
    label: str = ""
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A shade between ``low`` and ``high``: (x, low, high) each."""

    points: Sequence[tuple[float, float, float]]
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A filled rectangle from x0 to x1 over the height y0 to y1."""

    x0: float
    x1: float
    y0: float
    y1: float
    colour: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """``log`` needs positive values; ``ticks`` None chooses round ones; ``text`` writes them."""

    title: str
    log: bool = False
    ticks: Sequence[float] | None = None
    text: Callable[[float], str] = "{:g}".format
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """``finding`` is the alternative text: what the picture shows, in a sentence."""

    title: str
    finding: str
    x: Axis
    y: Axis
    lines: Sequence[Polyline] = ()
    bands: Sequence[Band] = ()
    marks: Sequence[Mark] = ()
    bars: Sequence[Bar] = ()
    note: str = ""
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def draw(chart: Chart) -> str:
    """The SVG."""
    labels = [line.label for line in chart.lines if line.label]
    right = _RIGHT - (max(map(len, labels)) * _LETTER_PX + 8 if labels else 0)
    bottom = _BOTTOM + chart.height - HEIGHT
    xs, ys = _values(chart)
    x = _scale(chart.x, xs, _LEFT, right)
    y = _scale(chart.y, ys, bottom, _TOP)
    return _TEMPLATE.render(
        chart=chart, width=WIDTH, height=chart.height, left=_LEFT, right=right, top=_TOP,
        bottom=bottom,
        x_ticks=[(x(v), chart.x.text(v)) for v in _shown(chart.x, x, 46)],
        y_ticks=[(y(v), chart.y.text(v)) for v in _shown(chart.y, y, 22)],
        bands=[(_outline(band, x, y), band.colour) for band in chart.bands],
        lines=[(path, line.colour) for line in chart.lines if (path := _path(line, x, y))],
        marks=[(x(m.x), y(m.y), m) for m in chart.marks if math.isfinite(m.x + m.y)],
        bars=[(x(b.x0), y(b.y1), max(x(b.x1) - x(b.x0), 0.6), y(b.y0) - y(b.y1), b)
              for b in chart.bars],
        labels=_labels(chart.lines, x, y, bottom), Shape=Shape,
    )  # fmt: skip


def _values(chart: Chart) -> tuple[list[float], list[float]]:
    pairs: list[XY] = [p for line in chart.lines for p in line.points]
    pairs += [(m.x, m.y) for m in chart.marks]
    pairs += [(at, edge) for band in chart.bands for at, *edges in band.points for edge in edges]
    pairs += [p for b in chart.bars for p in ((b.x0, b.y0), (b.x1, b.y1))]
    finite = [p for p in pairs if math.isfinite(p[0]) and math.isfinite(p[1])]
    return [p[0] for p in finite], [p[1] for p in finite]


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    known = [v for v in values if v > 0] if axis.log else list(values)
    low, high = min(known, default=1.0), max(known, default=1.0)
    if axis.log:
        low, high = low / 1.15, high * 1.15
    else:
        high += (high - low) * 0.04
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    if not high > low:
        high = low * 2 if axis.log else low + 1
    return _Scale(low, high, start, end, axis.log)


def _shown(axis: Axis, scale: _Scale, apart_px: float) -> list[float]:
    """Ticks within the scale, as many as have space."""
    ticks = list(axis.ticks) if axis.ticks is not None else round_values(scale)
    inside = [v for v in ticks if scale.low <= v <= scale.high * (1 + 1e-9)]
    kept: list[float] = []
    for value in inside:
        if not kept or abs(scale(value) - scale(kept[-1])) >= apart_px:
            kept.append(value)
    return kept


def round_values(scale: _Scale) -> list[float]:
    """1, 2 and 5 of each decade of a logarithmic scale; some five round steps of a linear one."""
    if scale.log:
        decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
        digits = (1, 2, 5) if len(decades) <= 4 else (1,)
        return [d * 10.0**k for k in decades for d in digits]
    rough = (scale.high - scale.low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * d for d in (1, 2, 5, 10) if size * d >= rough * 0.999)
    first = math.ceil(scale.low / step)
    return [round(k * step, 12) for k in range(first, math.floor(scale.high / step) + 1)]


def _path(line: Polyline, x: _Scale, y: _Scale) -> str:
    parts: list[str] = []
    before: float | None = None
    for px, py in line.points:
        if not (math.isfinite(px) and math.isfinite(py)):
            before = None
            continue
        if before is None:
            parts.append(f"M{x(px):g} {y(py):g}")
        elif line.steps:
            parts.append(f"H{x(px):g}V{y(py):g}")
        else:
            parts.append(f"L{x(px):g} {y(py):g}")
        before = py
    return "".join(parts)


def _outline(band: Band, x: _Scale, y: _Scale) -> str:
    there = [f"{x(at):g},{y(high):g}" for at, _, high in band.points]
    back = [f"{x(at):g},{y(low):g}" for at, low, _ in reversed(band.points)]
    return " ".join(there + back)


def _labels(
    lines: Sequence[Polyline], x: _Scale, y: _Scale, bottom: float
) -> list[tuple[float, float, str, str]]:
    """Each at its line's end, pushed apart where they would overlap."""
    ends = []
    for line in lines:
        known = [p for p in line.points if math.isfinite(p[0]) and math.isfinite(p[1])]
        if line.label and known:
            ends.append((y(known[-1][1]), line.label, line.colour))
    ends.sort()
    placed: list[float] = []
    for at, _, _ in ends:
        placed.append(max(at, placed[-1] + _LABEL_PX) if placed else max(at, _TOP))
    for k in range(len(placed) - 1, -1, -1):  # labels pushed out below return
        limit = bottom if k == len(placed) - 1 else placed[k + 1] - _LABEL_PX
        placed[k] = min(placed[k], limit)
    return [
        (x.end + 6, at + 4, label, colour)
        for at, (_, label, colour) in zip(placed, ends, strict=True)
    ]


_TEMPLATE = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True, trim_blocks=True, lstrip_blocks=True,
).get_template("chart.svg.j2")  # fmt: skip
