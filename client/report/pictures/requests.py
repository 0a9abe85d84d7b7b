"""Pictures of single requests: latency by size and over time, of one run or of several systems.

Requests that were cut are drawn at the time they had waited by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.analysis.statistics import Floats
from client.load.records import Outcome, Run
from client.report.html.chart import Axis, Band, Bar, Chart, Mark, Polyline, Shape
from client.report.html.page import seconds

FIRST_COLOUR, END_COLOUR, MISSED_COLOUR = "#5e9c51", "#1f77b4", "#c0392b"
_DRAWN = 600  # points of one system in one picture; more would only make the file larger


@dataclass(frozen=True, slots=True)
class Asked:
    """What one system was asked: requests, each with its seed."""

    system: str
    colour: str
    requests: Sequence[tuple[int, Outcome]]

    def drawn(self) -> Iterator[tuple[Outcome, str]]:
        """So many that a picture can hold, and the beginning of their tooltips. Those that failed
        are in no picture of several systems."""
        kept = [(seed, o) for seed, o in self.requests if o.ok or o.unfinished]
        for seed, o in kept[:: math.ceil(len(kept) / _DRAWN) or 1]:
            yield o, f"{self.system}, seed {seed}, "


def e2e_s(o: Outcome) -> float:
    """To the end of the response; of a request without one, as long as it had waited."""
    ended = o.end_s if o.ok and o.end_s is not None else None
    return ended - o.origin_s if ended is not None else max(o.left_s - o.origin_s, 1e-4)


def mark(o: Outcome, x: float, colour: str, who: str = "") -> Mark:
    """A request at ``x``, by its latency. ``who`` begins the tooltip."""
    tip = f"{who}request {o.index}: {o.requested_tokens} tokens"
    if not o.ok:
        shape = Shape.AT_LEAST if o.unfinished else Shape.CROSS
        return Mark(x, e2e_s(o), colour, f"{tip}, {o.failure}, after {seconds(e2e_s(o))}", shape)
    if o.first_s is not None:
        tip += f", first after {seconds(o.first_s - o.origin_s)}"
    return Mark(x, e2e_s(o), colour, f"{tip}, all after {seconds(e2e_s(o))}", small=True)


def by_tokens(title: str, groups: Sequence[Asked]) -> Chart:
    """The original's figure: latency against requested tokens, a line through the medians."""
    lines, bands, marks, medians = [], [], [], []
    for group in groups:
        marks += [mark(o, o.requested_tokens, group.colour, who) for o, who in group.drawn()]
        done = [o for _, o in group.requests if o.ok]
        cut = sum(o.unfinished for _, o in group.requests)
        if not done:
            continue
        x = np.array([o.requested_tokens for o in done], dtype=np.float64)
        y = np.array([e2e_s(o) for o in done])
        bins = _binned(x, y)
        label = f"{group.system}, {cut} cut" if cut else group.system
        lines.append(Polyline([(at, middle) for at, _, middle, _ in bins], group.colour, label))
        bands.append(Band([(at, low, high) for at, low, _, high in bins], group.colour))
        median = f"{group.system} {seconds(float(np.median(y)))}"
        medians.append(median + (f" ({cut} cut)" if cut else ""))
    return Chart(
        title=title,
        finding=f"{title}; medians: {', '.join(medians) or 'no responses'}.",
        x=Axis("requested tokens", low=0.0),
        y=Axis("intended time to end of response", log=True, text=seconds),
        lines=lines, bands=bands, marks=marks,
        note="line: median, shade: middle half"
        + (", triangle: cut" if any(m.shape is Shape.AT_LEAST for m in marks) else ""),
    )  # fmt: skip


def _binned(x: Floats, y: Floats) -> list[tuple[float, float, float, float]]:
    """Mean size, and quartiles of the latency, of up to ten groups of equal numbers."""
    parts = np.array_split(np.argsort(x, kind="stable"), max(1, min(10, x.size // 8)))
    return [(float(x[p].mean()), *np.quantile(y[p], (0.25, 0.5, 0.75)).tolist()) for p in parts]


def over_time(title: str, groups: Sequence[Asked]) -> Chart:
    marks = [mark(o, o.origin_s, g.colour, who) for g in groups for o, who in g.drawn()]
    return Chart(
        title=title,
        finding=f"The end-to-end latency of {len(marks)} requests by their intended time.",
        x=Axis("intended time in seconds"),
        y=Axis("intended time to end of response", log=True, text=seconds),
        marks=marks,
        note="triangle: cut, took longer",
    )


def arrivals_and_load(run: Run) -> Chart:
    """Arrivals in sixtieths of the window, and the requests in flight."""
    end_s = max(run.window_end_s, 1e-3)
    origins = np.array([o.origin_s for o in run.outcomes if o.origin_s <= end_s])
    counts, edges = np.histogram(origins, bins=60, range=(0.0, end_s))
    bars = [
        Bar(a, b, 0.0, float(n), "#c3c9d1", f"{n} arrived between {a:.2f} and {b:.2f} s")
        for n, a, b in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        if n
    ]
    changes = [
        (t, float(n))
        for k, (t, n) in enumerate(run.in_flight)
        if k in (0, len(run.in_flight) - 1) or n != run.in_flight[k - 1][1]
    ]
    most = max((n for _, n in changes), default=0.0)
    return Chart(
        title="Arrivals and requests in flight",
        finding=f"{len(run.outcomes)} requests over {end_s:.1f} s, at most {most:.0f} in flight.",
        x=Axis("seconds", low=0.0), y=Axis("requests", low=0.0),
        bars=bars, lines=[Polyline(changes, END_COLOUR, "in flight", steps=True)],
        note=f"bars: arrivals in {end_s / 60:.2g} s",
    )  # fmt: skip


def first_and_end(run: Run) -> Chart:
    """Of each request over time."""
    marks = []
    for o in run.outcomes:
        whole = mark(o, o.origin_s, END_COLOUR if o.ok else MISSED_COLOUR)
        marks.append(whole)
        if o.ok and o.first_s is not None and o.first_s > o.origin_s:
            marks.append(replace(whole, y=o.first_s - o.origin_s, colour=FIRST_COLOUR))
    return Chart(
        title="Latency over time",
        finding=f"First token and end of {len(run.outcomes)} requests by their intended time.",
        x=Axis("intended time in seconds", low=0.0),
        y=Axis("from the intended time", log=True, text=seconds),
        marks=marks, note="green: first token, blue: end, red: failed or cut",
    )  # fmt: skip
