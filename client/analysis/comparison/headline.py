"""What a comparison states first: throughput at the limit, latency where both keep up, capacity.

Below saturation the ratio of two throughputs is that of the offered loads, and beyond it latencies
reflect the length of the run. So each figure is compared where it has a meaning. An overloaded
server may deliver less than it can, so each system's throughput counts at the load where it
delivers most. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from client.analysis.comparison.bootstrap import best_ratio
from client.analysis.comparison.results import Bracket, Headline, LimitRatio, Pair, Peak
from client.analysis.comparison.summary import (
    TAIL,
    BySeed,
    Point,
    figure_by_seed,
    names_of,
    paired,
    paired_tail,
    planned,
    verdict_of,
)
from client.analysis.figures import PAIRED, THROUGHPUT
from client.analysis.gates import SATURATED, VALID
from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval


def headline(points: Sequence[Point], objectives: Objectives, share: float) -> Headline:
    """``points`` in the order of the table: each system is compared with those before it."""
    names = names_of(points)
    pairs = [
        _pair(of, over, of.runs, over.runs)
        for over, of in combinations(points, 2)
        if over.load == of.load and over.verdict == of.verdict == VALID
    ]
    controls = [
        _pair(p, p, {r.job.seed: [r] for r in second}, {r.job.seed: [r] for r in planned(p.runs)})
        for p in points
        if (second := planned(p.runs, repeat=True)) and verdict_of(second)[0] == p.verdict
    ]
    tried = {name: _tried(name, points) for name in names}
    limits = [limit for name in names if (limit := _limit(name, points, tried[name]))]
    ratios = [
        LimitRatio(of.system, over.system, ratio)
        for over, of in combinations(limits, 2)
        if (ratio := _limit_ratio(tried[of.system], of.load, tried[over.system], over.load))
    ]
    return Headline(
        objectives,
        share,
        tuple(_bracket(name, points, share) for name in names),
        tuple(limits),
        tuple(ratios),
        tuple(p for p in pairs if any(p.ratios.values())),
        tuple(p for p in controls if any(p.ratios.values())),
    )


Tried = Mapping[float, Mapping[int, float]]  # tokens a second by load and seed


def _tried(name: str, points: Sequence[Point]) -> Tried:
    """A system's throughput at the loads where it can be used."""
    found = {
        p.load: figure_by_seed(p.runs, THROUGHPUT)
        for p in points
        if p.system == name and p.usable and p.void("throughput") is None
    }
    return {load: of for load, of in found.items() if of and min(of.values()) > 0}


def _limit(name: str, points: Sequence[Point], tried: Tried) -> Peak | None:
    """Where it delivered most, by the geometric mean over the seeds; None if it kept up there and
    at all higher loads, so that it might deliver more, or was not played at the highest: one that
    ran at a single load has no choice."""
    mine = {p.load: p for p in points if p.system == name}
    if not tried or max(p.load for p in points) not in mine:
        return None
    best = max(tried, key=lambda x: float(np.mean(np.log(list(tried[x].values())))))
    if not any(p.verdict == SATURATED for x, p in mine.items() if x >= best):
        return None
    measured = [r.measured for seed in tried[best] for r in mine[best].runs[seed]]
    return Peak(
        name,
        best,
        mine[best].throughput,
        round(sum(m.achieved * m.window_s for m in measured)),
        math.fsum(m.window_s for m in measured),
    )


def _limit_ratio(mine: Tried, mine_at: float, base: Tried, base_at: float) -> Interval | None:
    """The ratio over the seeds that both limits have, at the loads ``mine_at`` and ``base_at``.

    A load that lacks one of these seeds cannot be chosen in the bootstrap."""
    seeds = sorted(mine[mine_at].keys() & base[base_at].keys())
    ours, theirs = (
        np.array([[of[s] for s in seeds] for of in side.values() if of.keys() >= {*seeds}])
        for side in (mine, base)
    )
    return best_ratio(ours, theirs)


def _pair(of: Point, over: Point, mine: BySeed, base: BySeed) -> Pair:
    """``of`` over ``over``, which have the same verdict; no ratio of figures void on either
    side."""

    def usable(figure: str, verdict: str = VALID) -> bool:
        return of.verdict == verdict and not (of.void(figure) or over.void(figure))

    ratios = dict[str, Interval | None]()
    for figure in PAIRED:
        key, tail = figure.key, f"{figure.key}_p{TAIL}"
        if figure is THROUGHPUT:
            ratios[key] = paired(mine, base, figure) if usable(key, SATURATED) else None
        else:
            ratios[key] = paired(mine, base, figure) if usable(f"{key}_p50") else None
            ratios[tail] = paired_tail(mine, base, figure) if usable(tail) else None
    return Pair(of.system, over.system, of.load, ratios)


def _bracket(name: str, points: Sequence[Point], share: float) -> Bracket:
    """Up to the first load that fails: beyond it, one that passes did so by chance."""
    passed = None
    for p in sorted((p for p in points if p.system == name), key=lambda p: p.load):
        if p.attained is None or p.void("goodput") is not None or not p.usable:
            continue
        if p.verdict != VALID or p.attained < share:
            return Bracket(name, passed, p.load)
        passed = p.load
    return Bracket(name, passed, None)
