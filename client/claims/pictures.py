"""A picture for each claim, in which the difference is seen at a glance. Drawn from the runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from client.analysis.figures import TTFT
from client.analysis.statistics import Floats
from client.claims.figures import METRICS, ends_s, service, urgent, users, waited_s
from client.claims.play import BASELINE, CONTROL, POLICY, Played
from client.load.records import Run
from client.report.html.chart import WIDTH, Axis, Bar, Chart, Mark, Polyline, draw
from client.report.html.page import seconds
from client.report.pictures.requests import Asked, by_tokens

COLOURS = {BASELINE: "#8a8f98", POLICY: "#1f77b4"}
FURTHER, OTHER_USER = "#d1603d", "#e8833a"
LONG_TOKENS = 64  # of a response that is drawn large
_POINTS = 200  # of a curve
Panel = Callable[[Played], Chart]


def picture(played: Played) -> str:
    """As SVG."""
    return beside(PICTURES[played.claim.picture](played))


def beside(charts: Sequence[Chart]) -> str:
    """Charts in one picture, on white, since pages may be dark."""
    high, wide = max(c.height for c in charts), WIDTH * len(charts)
    placed = (f'<svg x="{WIDTH * k}" width="{WIDTH}" height="{c.height}" '
              for k, c in enumerate(charts))  # fmt: skip
    inner = "".join(
        re.sub("<svg ", head, draw(c), count=1) for head, c in zip(placed, charts, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}">'
        f'<rect width="{wide}" height="{high}" fill="#fff"/>{inner}</svg>\n'
    )


def _sides(played: Played) -> dict[str, str]:
    """The names of all that ran, the baseline first."""
    claim = played.claim
    return {BASELINE: claim.baseline, **{name: name for name in claim.also}, POLICY: claim.policy}


def _colour(side: str) -> str:
    return COLOURS.get(side, FURTHER)


def _all(played: Played, side: str) -> list[Run]:
    """The runs of a side under the deciding traffic."""
    sides = (BASELINE, CONTROL) if side == BASELINE else (side,)
    return [run for side in sides for run in played.turns["traffic"].get(side, [])]


# --- one running request while a long prompt arrives --------------------------------------------


def _stalls(played: Played) -> list[Chart]:
    """A row a policy, a stroke a token; below it the long prompt, from arrival to first token."""
    bars, labels, waits = [], [], []
    end_s = 0.0
    for row, (side, name) in enumerate(reversed(_sides(played).items()), start=1):
        short, long = played.turns["drawn"][side][0].outcomes
        start_s = long.origin_s
        first_s = (long.first_s or long.left_s) - start_s
        end_s = max(end_s, 1.5 * first_s)
        times = np.array([at for at, _ in short.deliveries]) - start_s
        bars.append(Bar(0.0, first_s, row - 0.34, row - 0.24, OTHER_USER, f"{name}: long prompt"))
        bars += [Bar(t, t, row - 0.2, row + 0.35, _colour(side), f"{name}: token") for t in times]
        labels.append((row, side, name))
        after = times[times > 0]
        gap_s = float(np.diff(np.concatenate([[0.0], after])).max()) if after.size else first_s
        waits.append(f"{name} {seconds(gap_s)}")
    low = -0.2 * end_s
    kept = [b for b in bars if low <= b.x0 <= end_s]
    lines = [Polyline([(end_s, row)], _colour(side), name) for row, side, name in labels]
    return [
        Chart(
            title="One running request while a 900-token prompt arrives",
            finding=f"Longest time without a token: {', '.join(reversed(waits))}.",
            x=Axis("seconds since the prompt arrived", low=low, high=end_s),
            y=Axis("a stroke for each token; orange: the prompt is computed", ticks=(), low=0.4,
                   high=len(labels) + 0.6),
            lines=lines, bars=kept, height=90 + 60 * len(labels),
        )
    ]  # fmt: skip


# --- users ---------------------------------------------------------------------------------------


def _service(played: Played) -> list[Chart]:
    """A panel a policy, a line a user, until the last send."""
    panels = []
    runs = {side: _all(played, side)[0] for side in (BASELINE, POLICY)}
    most = 0.0
    for side, run in runs.items():
        end_s = run.workload.duration_s
        lines = []
        for user, colour in zip(users(run), (COLOURS[POLICY], OTHER_USER), strict=False):
            at, total = service(run, user)
            kept = at <= end_s
            most = max(most, float(total[kept][-1]) if kept.any() else 0.0)
            lines.append(
                Polyline(_thinned(at[kept], total[kept]), colour, f"user {user}", steps=True)
            )
        panels.append((side, end_s, lines))
    return [
        Chart(
            title=_sides(played)[side],
            finding=f"Service of each user over time under {_sides(played)[side]}.",
            x=Axis("seconds; user b sends twice as much as user a", low=0.0, high=end_s),
            y=Axis("service received (prompt tokens + 2 x generated ones)", low=0.0, high=most),
            lines=lines,
        )
        for side, end_s, lines in panels
    ]


def _progress(played: Played) -> list[Chart]:
    lines = []
    for side, name in _sides(played).items():
        ends = np.sort(ends_s(_all(played, side)[0]))
        lines.append(Polyline(_thinned(ends, np.arange(1.0, ends.size + 1)), _colour(side), name))
    return [_chart("Requests that ended, over time", "seconds", "requests", lines)]


# --- who waits -----------------------------------------------------------------------------------


def _starvation(played: Played) -> list[Chart]:
    """A panel a policy: when each request came, and how long it waited for its first token."""
    runs = {side: played.turns["drawn"][side][0] for side in _sides(played)}
    most = max(float(waited_s(run, TTFT).max()) for run in runs.values())
    panels = []
    for side, run in runs.items():
        name, first_s = _sides(played)[side], waited_s(run, TTFT)
        marks = []
        for o, waited in zip(run.outcomes, first_s.tolist(), strict=True):
            asked = run.workload.requests[o.index].output_tokens
            long = asked >= LONG_TOKENS
            colour, tip = FURTHER if long else COLOURS[POLICY], f"{asked} tokens: {seconds(waited)}"
            marks.append(Mark(o.origin_s, waited, colour, tip, small=not long))
        mean = seconds(float(np.mean(first_s)))
        panels.append(
            Chart(
                title=f"{name}: mean {mean}",
                finding=f"Time to the first token of each request under {name}, {mean} on average.",
                x=Axis("seconds at which the request came", low=0.0, high=run.workload.duration_s),
                y=Axis("time to first token; large: long responses", low=0.0, high=1.05 * most,
                       text=seconds),
                marks=marks,
            )
        )  # fmt: skip
    return panels


def _by_length(played: Played) -> list[Chart]:
    groups = [
        Asked(name, _colour(side), [(0, o) for run in _all(played, side) for o in run.outcomes])
        for side, name in _sides(played).items()
    ]
    chart = by_tokens("Latency by length of the response", groups)
    return [replace(chart, x=Axis("requested tokens", log=True))]  # most ask for few


def _shares(title: str, unit: str, of: Callable[[Run], Iterable[float]]) -> Panel:
    """The share of the requests, or programs, that waited at most so long."""

    def panel(played: Played) -> Chart:
        lines = []
        for side, name in _sides(played).items():
            waited = np.array([value for run in _all(played, side) for value in of(run)])
            ordered = np.sort(waited[waited > 0])
            share = np.arange(1.0, ordered.size + 1) / max(ordered.size, 1)
            lines.append(Polyline(_thinned(ordered, share), _colour(side), name))
        return _chart(title, unit, "share of the requests", lines, log=True)

    return panel


# --- goodput -------------------------------------------------------------------------------------


def _goodput(played: Played) -> list[Chart]:
    """Over the load; at the deciding load the mean of all seeds."""
    lines, goodput = [], METRICS["goodput"].values
    for side, name in _sides(played).items():
        points = {
            float(part.removeprefix("load ")): turns[side]
            for part, turns in played.turns.items()
            if part.startswith("load ")
        } | {played.claim.traffic.load: _all(played, side)}
        curve = [
            (load, float(np.mean([goodput(run) for run in runs])))
            for load, runs in sorted(points.items())
        ]
        lines.append(Polyline(curve, _colour(side), name))
    title = "Responses that met their objectives"
    return [_chart(title, "offered load (1 = what the server can serve)", "a second", lines)]


# --- helpers -------------------------------------------------------------------------------------


def _chart(title: str, x: str, y: str, lines: Sequence[Polyline], *, log: bool = False) -> Chart:
    names = " and ".join(line.label for line in lines)
    axis = Axis(x, log=True, text=seconds) if log else Axis(x)
    return Chart(title, f"{title}: {names}.", axis, Axis(y, low=0.0), lines=lines)


def _thinned(x: Floats, y: Floats) -> list[tuple[float, float]]:
    kept = np.unique(np.linspace(0, x.size - 1, min(x.size, _POINTS)).astype(int))
    return list(zip(x[kept].tolist(), y[kept].tolist(), strict=True))


def _panels(*panels: Panel) -> Callable[[Played], list[Chart]]:
    return lambda played: [panel(played) for panel in panels]


_FIRST = "time to first token"
PICTURES: dict[str, Callable[[Played], list[Chart]]] = {
    "stalls": _stalls,
    "starvation": _starvation,
    "service": _service,
    "progress": _progress,
    "by_length": _by_length,
    "goodput": _goodput,
    "urgent": _panels(
        _shares("Urgent requests", _FIRST, METRICS["urgent_ttft_mean"].values),
        _shares("The others", _FIRST, lambda run: waited_s(run, TTFT)[~urgent(run)]),
    ),
    "programs": _panels(
        _shares(
            "Programs",
            "latency per token of a program",
            METRICS["program_per_token_mean"].values,
        )
    ),
    "ttft": _panels(_shares("Time to first token", _FIRST, METRICS["ttft_mean"].values)),
}
