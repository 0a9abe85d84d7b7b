"""From runs to the comparison's table: figures per system and load, ratios with intervals.

Pure. All runs of a workload are measured over one window; percentiles and verdicts are of all
seeds together, ratios are paired over seeds. A run with wrong records is left out, and a point with
wrong records in half of its runs is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from client.analysis.comparison.bootstrap import pooled_ratio
from client.analysis.comparison.results import Calibration, Played, Result
from client.analysis.comparison.scalars import SCALARS
from client.analysis.fairness import Fairness, fairness
from client.analysis.figures import LATENCIES, PAIRED, THROUGHPUT, Figure
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
from client.analysis.metrics import Objectives, measure, shared_warm_up
from client.analysis.statistics import (
    Floats,
    Interval,
    least_n,
    paired_ratio,
    percentile,
    rate_interval,
)
from client.load.servers.stats import handled
from client.load.servers.system import COMPARED

TAIL = 99  # the percentile that is paired beside medians


@dataclass(frozen=True, slots=True)
class Point:
    """One system at one load, over all seeds. Latencies in seconds.

    ``ratios`` are to the baseline, by the keys of `PAIRED`; ``scalars`` by the columns of SCALARS.
    A saturated one has no TPOT and no fairness, since only its quickest requests ended. ``voids``
    name figures that the client's lateness invalidated.
    """

    system: str
    load: float
    offered: float
    seeds: tuple[int, ...]
    verdict: str
    reasons: tuple[str, ...]
    voids: tuple[Void, ...]
    throughput: Interval
    ratios: Mapping[str, Interval | None]
    latencies: Mapping[str, Floats]
    ok: int
    failed: int
    unfinished: int
    scalars: Mapping[str, float | None]
    fairness: Fairness | None

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
        cut = None if one.run.interrupted else shared_warm_up(one.run.workload)
        measured = measure(one.run, objectives, cut)
        verdict = judge(one.run, measured, handled(one.server))
        results.append(Result(one.job, one.run, one.server, one.iterations, measured, verdict))
    return results


def points(results: Sequence[Result], calibration: Calibration) -> list[Point]:
    """The table by load; in it the baseline first, then our modes, then the others."""
    kept, all_runs = final(results), whole(results)
    order = _in_order([r.job.system for r in kept], calibration.baseline)
    loads = sorted({r.job.load for r in kept})
    made = []
    for load in loads:
        base = runs_by_seed(all_runs, calibration.baseline, load)
        for name in order:
            mine = [r for r in kept if r.job.system == name and r.job.load == load]
            if mine:
                mine_by_seed = runs_by_seed(all_runs, name, load)
                made.append(_point(name, load, mine, mine_by_seed, base, calibration))
    return made


def names_of(points: Sequence[Point]) -> list[str]:
    """All systems in the order of the table, wherever each has a point."""
    names = [p.system for p in points]
    return _in_order(names, names[0]) if names else []


def _in_order(names: Sequence[str], baseline: str) -> list[str]:
    """Each once; runs came in random order."""
    ranked = list(dict.fromkeys((baseline, *COMPARED, *names)))
    return sorted(set(names), key=ranked.index)


def final(results: Sequence[Result]) -> list[Result]:
    """The planned runs, without the controls."""
    return [r for r in whole(results) if not r.job.repeat]


def whole(results: Sequence[Result]) -> list[Result]:
    """All but an interrupted run, which had less than its load and is only raw data."""
    return [r for r in results if not r.run.interrupted]


def runs_by_seed(results: Sequence[Result], name: str, load: float) -> dict[int, list[Result]]:
    """A system's runs at a load: one a seed, or two where it is the control."""
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
    keeping = keeping_up([r.verdict.backlog for r in runs if is_sound(r)])
    reasons = () if keeping.verdict == VALID else (f"{keeping.name}: {keeping.found}",)
    left_out = tuple(f"seed {r.job.seed} left out: {r.verdict.reason}" for r in wrong)
    return keeping.verdict, (*reasons, *left_out)


def _point(
    name: str,
    load: float,
    planned: Sequence[Result],
    mine: dict[int, list[Result]],
    base: dict[int, list[Result]],
    calibration: Calibration,
) -> Point:
    """``planned`` are its runs without the control's, which only the ratios use."""
    verdict, reasons = verdict_of(planned)
    usable = verdict in (VALID, SATURATED)
    runs = [r for r in sorted(planned, key=lambda r: r.job.seed) if is_sound(r) or not usable]
    pooled = {
        f.key: np.zeros(0)
        if f.of_ended and verdict == SATURATED
        else np.concatenate([r.measured.latencies[f.key] for r in runs])
        for f in LATENCIES
    }
    fair = None
    if verdict != SATURATED:
        rows = np.concatenate([r.measured.requests.rows for r in runs])
        fair = fairness(rows, calibration.isolated)
    own = name == calibration.baseline
    against = (
        verdict_of([r for runs in base.values() for r in runs])[0] if base and not own else None
    )

    both_keep_up = verdict == against == VALID
    return Point(
        system=name,
        load=load,
        offered=float(np.mean([r.run.workload.rate or math.nan for r in runs])),
        seeds=tuple(sorted(r.job.seed for r in planned)),
        verdict=verdict,
        reasons=reasons,
        voids=(*lag_gate([r.measured for r in runs]).voids, *_untold(runs)),
        throughput=rate_interval([r.measured.throughput for r in runs]),
        ratios={
            f.key: paired(mine, base, f) if both_keep_up else None
            for f in PAIRED
            if f is not THROUGHPUT  # whose limits are compared instead
        },
        latencies=pooled,
        ok=sum(r.measured.ok for r in runs),
        failed=sum(r.measured.failed for r in runs),
        unfinished=sum(r.measured.unfinished for r in runs),
        scalars={s.column: s.of(runs) for s in SCALARS},
        fairness=fair,
    )


def _untold(runs: Sequence[Result]) -> tuple[Void, ...]:
    """What cannot be known of servers that do not show when their tokens came."""
    gates = (g for r in runs for g in r.verdict.gates if g.name == TOKENS)
    return next((g.voids for g in gates if g.voids), ())


def paired(
    mine: dict[int, list[Result]], base: dict[int, list[Result]], of: Figure
) -> Interval | None:
    """The ratio of a figure over the seeds in which both sides are valid."""
    ours, theirs = figure_by_seed(mine, of), figure_by_seed(base, of)
    seeds = sorted(ours.keys() & theirs.keys())
    return paired_ratio([ours[s] for s in seeds], [theirs[s] for s in seeds], skewed=of.skewed)


def paired_tail(
    mine: dict[int, list[Result]], base: dict[int, list[Result]], of: Figure
) -> Interval | None:
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


def figure_by_seed(runs: dict[int, list[Result]], of: Figure) -> dict[int, float]:
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
