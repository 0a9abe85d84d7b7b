"""From runs to the comparison's table: figures per system and load, ratios with intervals.

Pure. All runs of a workload are measured over one window; percentiles and verdicts are of all
seeds together, ratios are paired over seeds. A run with wrong records is left out, and a point with
wrong records in half of its runs is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.analysis.comparison.bootstrap import pooled_ratio
from client.analysis.comparison.results import Calibration, Played, Result
from client.analysis.figures import LATENCIES, THROUGHPUT, Figure
from client.analysis.gates import (
    SATURATED,
    SEVERITY,
    TOKENS,
    VALID,
    Void,
    judge,
    keeping_up,
    lag_gate,
    void_of,
)
from client.analysis.metrics import Objectives, measure
from client.analysis.statistics import (
    Floats,
    Interval,
    least_n,
    paired_ratio,
    percentile,
    rate_interval,
)
from client.load.servers.processes import COMPARED
from client.load.servers.stats import handled

TAIL = 99  # the percentile that is paired beside medians
BySeed = Mapping[int, Sequence[Result]]  # one run, or two where the system is the control


@dataclass(frozen=True, slots=True)
class Point:
    """One system at one load, over all seeds. Latencies in seconds.

    ``runs`` are all of it, the control's as well, of which only ratios make use. A saturated one
    has no TPOT, since only its quickest requests ended. ``voids``
    name figures that the client's lateness invalidated. ``batch`` and ``padding`` are the mean size
    and the share of padding as the server states them, ``attained`` is the share of all that
    arrived that met the objectives.
    """

    system: str
    load: float
    offered: float
    runs: BySeed
    verdict: str
    reasons: tuple[str, ...]
    voids: tuple[Void, ...]
    throughput: Interval
    latencies: Mapping[str, Floats]
    ok: int
    failed: int
    unfinished: int
    lag_p99_s: float
    goodput: float | None
    attained: float | None
    batch: float | None
    padding: float | None

    @property
    def usable(self) -> bool:
        """Whether its figures may be compared at all."""
        return self.verdict in (VALID, SATURATED)

    def void(self, figure: str) -> Void | None:
        """Why a figure (``throughput``, ``ttft_p50``) is not to be used; None where it is."""
        return void_of(self.voids, figure)

    def latency(self, name: str, p: float) -> float | None:
        return percentile(self.latencies[name], p)

    def mean(self, name: str) -> float | None:
        """None where there is nothing, or where an unfinished request makes it infinite."""
        values = self.latencies[name]
        return float(values.mean()) if values.size and np.isfinite(values).all() else None


def measured_together(played: Sequence[Played], objectives: Objectives | None) -> list[Result]:
    """Figures and verdicts of all runs, those of one workload over the same window."""
    results = []
    for one in played:
        measured = measure(one.run, objectives)
        verdict = judge(one.run, measured, handled(one.server))
        results.append(Result(one.job, one.run, one.server, measured, verdict))
    return results


def points(results: Sequence[Result], calibration: Calibration) -> list[Point]:
    """The table by load; in it the baseline first, then our modes, then the others."""
    kept = [r for r in results if not r.run.interrupted]  # which had less than its load
    order = _in_order([r.job.system for r in kept], calibration.baseline)
    return [
        _point(name, load, runs)
        for load in sorted({r.job.load for r in kept})
        for name in order
        if any(planned(runs := runs_by_seed(kept, name, load)))
    ]


def names_of(points: Sequence[Point]) -> list[str]:
    """All systems in the order of the table, wherever each has a point."""
    names = [p.system for p in points]
    return _in_order(names, names[0]) if names else []


def tail_of(counts: Sequence[int]) -> float:
    """The highest percentile that most of these samples support."""
    typical = float(np.median(counts)) if counts else 0.0
    return next((p for p in (99.0, 95.0, 90.0) if typical >= least_n(p)), 90.0)


def _in_order(names: Sequence[str], baseline: str) -> list[str]:
    """Each once; runs came in random order."""
    ranked = list(dict.fromkeys((baseline, *COMPARED, *names)))
    return sorted(set(names), key=ranked.index)


def planned(runs: BySeed, *, repeat: bool = False) -> list[Result]:
    """Those that every system has; or those of the control."""
    return [r for mine in runs.values() for r in mine if r.job.repeat == repeat]


def runs_by_seed(results: Sequence[Result], name: str, load: float) -> BySeed:
    """A system's runs at a load."""
    found: dict[int, list[Result]] = {}
    for r in results:
        if r.job.system == name and r.job.load == load:
            found.setdefault(r.job.seed, []).append(r)
    return found


def verdict_of(runs: Sequence[Result]) -> tuple[str, tuple[str, ...]]:
    """One word for all seeds of a load, and why.

    Runs with wrong records count only if they are half of all or more. Saturation is judged on the
    evidence of all the others, never on the worst of them.
    """
    wrong = [r for r in runs if not is_sound(r)]
    if 2 * len(wrong) >= len(runs):
        word = max((r.verdict.word for r in wrong), key=SEVERITY.index)
        return word, tuple(dict.fromkeys(r.verdict.reason for r in wrong))
    keeping = keeping_up([r.measured for r in runs if is_sound(r)])
    reasons = () if keeping.verdict == VALID else (f"{keeping.name}: {keeping.found}",)
    left_out = tuple(f"seed {r.job.seed} left out: {r.verdict.reason}" for r in wrong)
    return keeping.verdict, (*reasons, *left_out)


def _point(name: str, load: float, by_seed: BySeed) -> Point:
    asked = sorted(planned(by_seed), key=lambda r: r.job.seed)
    verdict, reasons = verdict_of(asked)
    usable = verdict in (VALID, SATURATED)
    runs = [r for r in asked if is_sound(r) or not usable]
    measured = [r.measured for r in runs]
    pooled = {
        f.key: np.zeros(0)
        if f.of_ended and verdict == SATURATED
        else np.concatenate([m.latencies[f.key] for m in measured])
        for f in LATENCIES
    }
    arrived = sum(m.arrived for m in measured)
    good = [m.attained * m.arrived for m in measured if m.attained is not None]
    return Point(
        system=name,
        load=load,
        offered=float(np.mean([r.run.workload.rate or math.nan for r in runs])),
        runs=by_seed,
        verdict=verdict,
        reasons=reasons,
        voids=(*lag_gate(measured).voids, *_untold(runs)),
        throughput=rate_interval([m.throughput for m in measured]),
        latencies=pooled,
        ok=sum(m.ok for m in measured),
        failed=sum(m.failed for m in measured),
        unfinished=sum(m.unfinished for m in measured),
        lag_p99_s=float(np.quantile(np.concatenate([m.lag for m in measured]), 0.99)),
        goodput=mean_of([m.goodput for m in measured]),
        attained=sum(good) / arrived if good and arrived else None,
        batch=mean_of([stated(r.server, "batch-size", "mean") for r in runs]),
        padding=mean_of([stated(r.server, "padding-share") for r in runs]),
    )


def stated(stats: Mapping[str, Any] | None, *path: str) -> float | None:
    """A number that a server states in /stats."""
    value: Any = stats
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def mean_of(values: Sequence[float | None]) -> float | None:
    """Over those that have it."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _untold(runs: Sequence[Result]) -> tuple[Void, ...]:
    """What cannot be known of servers that do not show when their tokens came."""
    gates = (g for r in runs for g in r.verdict.gates if g.name == TOKENS)
    return next((g.voids for g in gates if g.voids), ())


def paired(mine: BySeed, base: BySeed, of: Figure) -> Interval | None:
    """The ratio of a figure over the seeds in which both sides are valid."""
    ours, theirs = figure_by_seed(mine, of), figure_by_seed(base, of)
    seeds, skewed = sorted(ours.keys() & theirs.keys()), of is not THROUGHPUT
    return paired_ratio([ours[s] for s in seeds], [theirs[s] for s in seeds], skewed=skewed)


def paired_tail(mine: BySeed, base: BySeed, of: Figure) -> Interval | None:
    """The ratio of the p99 of all seeds in which both sides are valid; None where n is too
    small."""
    sides = [
        {
            seed: np.concatenate([r.measured.latencies[of.key] for r in runs])
            for seed, runs in side.items()
            if all(map(is_sound, runs))
        }
        for side in (mine, base)
    ]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    ours, theirs = ([side[seed] for seed in seeds] for side in sides)
    if any(sum(v.size for v in values) < least_n(TAIL) for values in (ours, theirs)):
        return None
    effect = pooled_ratio(ours, theirs, TAIL)
    return None if effect is None else effect.interval


def figure_by_seed(runs: BySeed, of: Figure) -> dict[int, float]:
    """A figure of each seed in which all runs are valid.

    A system that ran twice in a block, before and after the others, counts with the geometric
    mean of both: a machine that grows slower within the block slows both sides alike.
    """
    return {
        seed: math.prod(_figure(r, of) for r in mine) ** (1 / len(mine))
        for seed, mine in runs.items()
        if all(map(is_sound, mine))
    }


def is_sound(result: Result) -> bool:
    return result.verdict.word in (VALID, SATURATED)


def _figure(result: Result, of: Figure) -> float:
    if of is THROUGHPUT:
        return result.measured.throughput
    values = result.measured.latencies[of.key]
    return float(np.median(values)) if values.size else math.nan
