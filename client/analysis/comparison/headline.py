"""What a comparison states first: throughput at the limit, latency where both keep up, capacity.

Below saturation the ratio of two throughputs is that of the offered loads, and beyond it latencies
reflect the length of the run. So each figure is compared where it has a meaning. An overloaded
server may deliver less than it can, so each system's throughput counts at the load where it
delivers most. Beside it, what the variance of output lengths alone predicts of dynamic over static
batching. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from client.analysis.comparison.bootstrap import best_ratio
from client.analysis.comparison.results import Bracket, Headline, LimitRatio, Pair, Peak, Result
from client.analysis.comparison.scalars import ATTAINED, batch_mean
from client.analysis.comparison.summary import (
    TAIL,
    Point,
    figure_by_seed,
    final,
    is_sound,
    names_of,
    paired,
    paired_tail,
    runs_by_seed,
    verdict_of,
    whole,
)
from client.analysis.figures import PAIRED, THROUGHPUT
from client.analysis.gates import SATURATED, VALID
from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval, expected_max


def headline(
    results: Sequence[Result], points: Sequence[Point], objectives: Objectives, share: float
) -> Headline:
    """``points`` in the order of the table: each system is compared with those before it."""
    names = names_of(points)
    loads = sorted({p.load for p in points})
    table = {(p.system, p.load): p for p in points}
    every = whole(results)
    pairs = [
        _pair(mine, base, runs_by_seed(every, of, load), runs_by_seed(every, over, load))
        for load in loads
        for over, of in combinations(names, 2)
        if (mine := table.get((of, load))) and (base := table.get((over, load)))
        if mine.verdict == base.verdict == VALID
    ]
    again = [r for r in every if r.job.repeat]
    controls = [
        _pair(point, point, second, runs_by_seed(final(results), point.system, point.load))
        for point in points
        if (second := runs_by_seed(again, point.system, point.load))
        if verdict_of([r for runs in second.values() for r in runs])[0] == point.verdict
    ]
    tried = {name: _tried(name, points, every) for name in names}
    limits = [
        limit
        for name in names
        if (name, loads[-1]) in table  # one that ran at a single load has no choice
        if (limit := _limit(name, points, tried[name], every))
    ]
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


def _tried(name: str, points: Sequence[Point], every: Sequence[Result]) -> Tried:
    """A system's throughput at the loads where it can be used."""
    loads = [
        p.load for p in points if p.system == name and p.usable and p.void("throughput") is None
    ]
    found = {x: figure_by_seed(runs_by_seed(every, name, x), THROUGHPUT) for x in loads}
    return {x: of for x, of in found.items() if of and min(of.values()) > 0}


def _limit(
    name: str, points: Sequence[Point], tried: Tried, every: Sequence[Result]
) -> Peak | None:
    """Where it delivered most, by the geometric mean over the seeds; None if it kept up there and
    at all higher loads, so that it might deliver more."""
    if not tried:
        return None
    best = max(tried, key=lambda x: float(np.mean(np.log(list(tried[x].values())))))
    mine = {p.load: p for p in points if p.system == name}
    if not any(p.verdict == SATURATED for x, p in mine.items() if x >= best):
        return None
    runs = [
        r for r in every if (r.job.system, r.job.load) == (name, best) if r.job.seed in tried[best]
    ]
    return Peak(
        name,
        best,
        mine[best].throughput,
        round(sum(r.measured.achieved * r.measured.window_s for r in runs)),
        math.fsum(r.measured.window_s for r in runs),
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


def _pair(
    of: Point, over: Point, mine: dict[int, list[Result]], base: dict[int, list[Result]]
) -> Pair:
    """``of`` over ``over``, which have the same verdict; no ratio of figures void on either
    side."""

    def usable(figure: str, verdict: str = VALID) -> bool:
        return of.verdict == verdict and not (of.void(figure) or over.void(figure))

    ratios, tails = dict[str, Interval | None](), dict[str, Interval | None]()
    for figure in PAIRED:
        key, tail = figure.key, f"{figure.key}_p{TAIL}"
        if figure is THROUGHPUT:
            ratios[key] = paired(mine, base, figure) if usable(key, SATURATED) else None
        else:
            ratios[key] = paired(mine, base, figure) if usable(f"{key}_p50") else None
            tails[tail] = paired_tail(mine, base, figure) if usable(tail) else None
    return Pair(of.system, over.system, of.load, ratios, tails)


def _bracket(name: str, points: Sequence[Point], share: float) -> Bracket:
    """Up to the first load that fails: beyond it, one that passes did so by chance."""
    passed = None
    for p in sorted((p for p in points if p.system == name), key=lambda p: p.load):
        attained = p.scalars[ATTAINED.column]
        if attained is None or p.void("goodput") is not None or not p.usable:
            continue
        if p.verdict != VALID or attained < share:
            return Bracket(name, passed, p.load)
        passed = p.load
    return Bracket(name, passed, None)


@dataclass(frozen=True, slots=True)
class PredictedGain:
    """The ratio of dynamic to static that length variance alone predicts, and the measured one."""

    batch: float
    predicted: float
    measured: Interval | None
    load: float


def length_variance_gain(results: Sequence[Result], found: Headline) -> PredictedGain | None:
    """E[max of B]/E[out] at the batch size that static really had at its limit, beside the ratio
    of the limits; None where static has none.

    A static batch computes until its longest row is done, so of B rows' slots only E[out]/E[max]
    are used (Orca, OSDI'22, 2). Padding, prefill and the speed of a slot are not included.
    """
    static = next((x for x in found.limits if x.system == "static"), None)
    if static is None:
        return None
    load = static.load
    mine = [r for r in final(results) if r.job.system == "static" and r.job.load == load]
    kept = [r for r in mine if is_sound(r)] or mine
    sizes = [size for r in kept if (size := batch_mean(r)) is not None]
    if not sizes or len(sizes) < len(kept):
        return None
    batch = float(np.mean(sizes))
    lengths = np.array(
        [request.output_tokens for r in kept for request in r.run.workload.requests],
        dtype=np.float64,
    )
    ratios = {(r.of, r.over): r.throughput for r in found.limit_ratios}
    measured = ratios.get(("dynamic", "static"))
    return PredictedGain(
        batch, expected_max(lengths, batch) / float(lengths.mean()), measured, load
    )
