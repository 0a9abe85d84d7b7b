"""One form of picture for every claim, in which the difference is seen at a glance: which share of
the requests (of runs, where a run has one value) had at most so much of the metric that decides."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from client.analysis.statistics import Floats
from client.claims.figures import METRICS, Metric
from client.claims.play import BASELINE, CONTROL, PARTS, POLICY, Played
from client.report.pictures.drawing import drawn, in_seconds, named
from client.report.words import seconds

COLOURS = {BASELINE: "#8a8f98", POLICY: "#1f77b4"}
_POINTS = 500  # of a curve


def picture(played: Played) -> str:
    """As SVG: the deciding traffic, and beside it the calm one."""
    panels = [partial(_panel, played, part) for part in PARTS]
    return drawn("", *panels).svg


def _panel(played: Played, part: str, axes: Axes) -> None:
    claim, metric = played.claim, METRICS[played.claim.metric]
    load = (claim.traffic if part == "traffic" else claim.calm).load
    named(axes, f"{part}, load {load:g}", metric.name, "share with at most so much")
    for side, name in ((BASELINE, claim.baseline), (POLICY, claim.policy)):
        values = np.sort(_values(played, part, side, metric))
        known = values[np.isfinite(values)]  # a curve that ends below 1: the others never ended
        kept = np.unique(np.linspace(0, known.size - 1, min(known.size, _POINTS)).astype(int))
        shares = (kept + 1) / max(values.size, 1)
        axes.step(known[kept], shares, where="post", label=name, color=COLOURS[side])
    axes.set_ylim(0, 1)
    if metric.text is seconds:
        axes.set_xscale("log")
        in_seconds(axes.xaxis)
    axes.legend()


def _values(played: Played, part: str, side: str, metric: Metric) -> Floats:
    sides = (BASELINE, CONTROL) if side == BASELINE else (side,)
    runs = [metric.values(block[one]) for block in played.blocks(part) for one in sides]
    if metric.share or all(values.size == 1 for values in runs):
        return np.array([values.mean() for values in runs])
    return np.concatenate([np.zeros(0), *runs])
