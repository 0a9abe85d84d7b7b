"""What a comparison states first: capacity, throughput at saturation, latency where both keep up.

Below saturation the ratio of two throughputs is that of the offered loads, and beyond it latencies
reflect the length of the run. So each figure is compared where it has a meaning. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from client.analysis.gates import SATURATED, VALID
from client.analysis.metrics import Objectives
from client.analysis.results import AtSaturation, Bracket, Headline, Pair, Result
from client.analysis.statistics import Interval
from client.analysis.summary import Point, by_seed, final, paired, verdict_of, whole


def headline(
    results: Sequence[Result], points: Sequence[Point], objectives: Objectives, share: float
) -> Headline:
    """``points`` in the order of the table: each contestant is compared with those before it."""
    names = list(dict.fromkeys(p.contestant for p in points))
    loads = sorted({p.load for p in points})
    table = {(p.contestant, p.load): p for p in points}
    every = whole(results)
    pairs = [
        _pair(mine, base, by_seed(every, of, load), by_seed(every, over, load))
        for load in loads
        for over, of in combinations(names, 2)
        if (mine := table.get((of, load))) and (base := table.get((over, load)))
        if mine.verdict == base.verdict
    ]
    again = [r for r in every if r.repeat]
    controls = [
        _pair(point, point, second, by_seed(final(results), point.contestant, point.load))
        for point in points
        if (second := by_seed(again, point.contestant, point.load))
        if verdict_of([r for runs in second.values() for r in runs])[0] == point.verdict
    ]
    return Headline(
        objectives,
        share,
        tuple(_bracket(name, points, share) for name in names),
        tuple(
            AtSaturation(p.contestant, p.load, p.throughput)
            for name in names
            if (p := _last_saturated(name, points)) is not None
        ),
        tuple(p for p in pairs if _says_something(p)),
        tuple(p for p in controls if _says_something(p)),
    )


def _pair(
    of: Point, over: Point, mine: dict[int, list[Result]], base: dict[int, list[Result]]
) -> Pair:
    """``of`` over ``over``, which have the same verdict; no ratio of figures void on either
    side."""

    def ratio(name: str, figure: str, word: str) -> Interval | None:
        void = of.void(figure) or over.void(figure)
        return None if void or of.verdict != word else paired(mine, base, name)

    at_limit = ratio("throughput", "throughput", SATURATED)
    ttft, tpot, e2e = (ratio(name, f"{name}_p50", VALID) for name in ("ttft", "tpot", "e2e"))
    return Pair(of.contestant, over.contestant, of.load, at_limit, ttft, tpot, e2e)


def _says_something(pair: Pair) -> bool:
    return any(ratio is not None for ratio in (pair.throughput, pair.ttft, pair.tpot, pair.e2e))


def _bracket(name: str, points: Sequence[Point], share: float) -> Bracket:
    """Up to the first load that fails: beyond it, one that passes did so by chance."""
    passed = None
    for p in sorted((p for p in points if p.contestant == name), key=lambda p: p.load):
        if p.attained is None or p.void("goodput") is not None or not p.usable:
            continue
        if p.verdict != VALID or p.attained < share:
            return Bracket(name, passed, p.load)
        passed = p.load
    return Bracket(name, passed, None)


def _last_saturated(name: str, points: Sequence[Point]) -> Point | None:
    mine = [p for p in points if p.contestant == name and p.verdict == SATURATED]
    return max(mine, key=lambda p: p.load, default=None)
