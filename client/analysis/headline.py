"""What a comparison states first: capacity, throughput at saturation, latency where both sustain.

Below saturation the ratio of two throughputs is that of what was offered, and beyond it latencies
tell how long the run was. So each figure is compared where it means something. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from client.analysis.gates import SATURATED, VALID
from client.analysis.metrics import Objectives
from client.analysis.results import AtSaturation, Bracket, Headline, Pair, Result
from client.analysis.summary import Point, final, paired, verdict_of


def headline(
    results: Sequence[Result], points: Sequence[Point], objectives: Objectives, share: float
) -> Headline:
    """``points`` in the order of the table: each contestant is compared with those before it."""
    names = list(dict.fromkeys(p.contestant for p in points))
    loads = sorted({p.load for p in points})
    words = {(p.contestant, p.load): p.verdict for p in points}
    kept = final(results)
    pairs = [
        _pair(of, over, load, _runs(kept, of, load), _runs(kept, over, load), words[of, load])
        for load in loads
        for over, of in combinations(names, 2)
        if words.get((of, load)) == words.get((over, load))
    ]
    again = [r for r in results if r.repeat and not r.run.interrupted]
    controls = [
        _pair(name, name, load, second, _runs(kept, name, load), verdict_of([*second.values()])[0])
        for name in names
        for load in loads
        if (second := _runs(again, name, load)) and (name, load) in words
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


def _runs(results: Sequence[Result], name: str, load: float) -> dict[int, Result]:
    return {r.seed: r for r in results if r.contestant == name and r.load == load}


def _pair(
    of: str, over: str, load: float, mine: dict[int, Result], base: dict[int, Result], word: str
) -> Pair:
    at_limit = paired(mine, base, "throughput") if word == SATURATED else None
    ttft, tpot, e2e = (
        paired(mine, base, name) if word == VALID else None for name in ("ttft", "tpot", "e2e")
    )
    return Pair(of, over, load, at_limit, ttft, tpot, e2e)


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
