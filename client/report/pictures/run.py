"""The pictures of one run: its arrivals, the requests in flight, and the latency of each."""

from __future__ import annotations

import numpy as np

from client.load.records import Run
from client.report.html.chart import Axis, Bar, Chart, Line, Mark, Shape
from client.report.html.page import seconds

FIRST_COLOUR, END_COLOUR, MISSED_COLOUR = "#5e9c51", "#1f77b4", "#c0392b"


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
        bars=bars, lines=[Line(changes, END_COLOUR, "in flight", steps=True)],
        note=f"bars: arrivals in {end_s / 60:.2g} s",
    )  # fmt: skip


def latencies(run: Run) -> Chart:
    marks = []
    for o in run.outcomes:
        if o.ok and o.end_s is not None:
            title = f"request {o.index}, {o.requested_tokens} tokens"
            end_s = o.end_s - o.origin_s
            marks.append(
                Mark(o.origin_s, end_s, END_COLOUR, f"{title}: end {seconds(end_s)}", small=True)
            )
            if o.first_s is not None and o.first_s > o.origin_s:
                first_s = o.first_s - o.origin_s
                tip = f"{title}: first token {seconds(first_s)}"
                marks.append(Mark(o.origin_s, first_s, FIRST_COLOUR, tip, small=True))
        else:
            gone_s = max(o.left_s - o.origin_s, 1e-4)
            shape = Shape.AT_LEAST if o.unfinished else Shape.CROSS
            tip = f"request {o.index}: {o.failure}"
            marks.append(Mark(o.origin_s, gone_s, MISSED_COLOUR, tip, shape))
    return Chart(
        title="Latency over time",
        finding=f"First token and end of {len(run.outcomes)} requests by their intended time.",
        x=Axis("intended time in seconds", low=0.0),
        y=Axis("from the intended time", log=True, text=seconds),
        marks=marks, note="green: first token, blue: end, red: failed or cut",
    )  # fmt: skip
