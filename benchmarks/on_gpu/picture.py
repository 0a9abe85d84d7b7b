"""The picture of benchmarks/gpu.py, written as SVG by hand: that machine has no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from benchmarks.on_gpu.points import Played, Report, StepTime

WIDTH, HEIGHT = 420, 330  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 40, 105
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
Lines = Mapping[str, Sequence[tuple[float, float]]]


def picture(report: Report) -> str:
    """Tokens per second by batch limit, for each kind of work; time of a decode step by rows."""
    panels = []
    for lengths in ("mixed", "equal"):
        lines: dict[str, list[tuple[float, float]]] = {}
        for run in report.points:
            if isinstance(run, Played) and run.lengths == lengths and run.mode != "nobatch":
                ahead = " ahead" if run.lookahead else ""
                name = f"{run.mode}{ahead}, {'graphs' if run.graphs else 'eager'}"
                lines.setdefault(name, []).append((run.limit, run.tokens_per_s))
        panels.append((f"{lengths} lengths: tokens/s by batch limit", lines))
    steps: dict[str, list[tuple[float, float]]] = {}
    for step in report.points:
        if isinstance(step, StepTime) and step.sampling == "greedy":
            name = f"{'graphs' if step.graphs else 'eager'}, {step.context} tokens"
            steps.setdefault(name, []).append((step.rows, 1000 * step.seconds))
            if report.bandwidth_gb_s and step.graphs:
                limit_ms = step.needed_bytes / report.bandwidth_gb_s / 1e6
                limit = f"bandwidth's limit, {step.context}"
                steps.setdefault(limit, []).append((step.rows, limit_ms))
    panels.append(("decode step: ms by rows", steps))
    work, device = report.facts("work"), report.facts("device")
    title = f"{work.get('model')}, {work.get('dtype')}, on {device.get('name', work.get('device'))}"
    drawn = [
        f'<g transform="translate({i * WIDTH} 20)">{"".join(_panel(name, its))}</g>'
        for i, (name, its) in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(panels) * WIDTH}" '
        f'height="{HEIGHT + 20}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="10" y="18" font-size="13">{escape(title)}</text>{"".join(drawn)}</svg>\n'
    )


def _panel(title: str, lines: Lines) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="{TOP - 12}">{escape(title)}</text>'
    points = [point for line in lines.values() for point in line if min(point) > 0]
    if not points:
        yield f'<text x="{LEFT}" y="{HEIGHT / 2}">not measured</text>'
        return
    across = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    up = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    for x in sorted({x for x, _ in points}):
        at = across(x)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{x:g}</text>'
    for y in up.marks():
        at = up(y)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>'
        yield f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>'
    for i, (name, line) in enumerate(sorted(lines.items())):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(line) if min(x, y) > 0)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        x, y = LEFT + 160 * (i % 2), HEIGHT - BOTTOM + 34 + 16 * (i // 2)
        yield f'<rect x="{x}" y="{y - 8}" width="10" height="8" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="{y}">{escape(name)}</text>'


class _Axis:
    """A logarithmic one, from pixel `start` to pixel `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = min(values), max(values)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        span = math.log(self._high / self._low) or 1.0
        return self._start + (self._end - self._start) * math.log(value / self._low) / span

    def marks(self) -> list[float]:
        """1, 2, 5, 10, 20 and so on, or the ends where none of them lies between."""
        powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        marks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [m for m in marks if self._low <= m <= self._high] or [self._low, self._high]
