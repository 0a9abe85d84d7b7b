"""From runs to the comparison's table: figures per system and load, ratios with intervals.

Pure. All runs of a workload are measured over one stretch; percentiles and verdicts are of all
seeds together, ratios are paired over seeds. A run with wrong records is left out, and a point with
wrong records in half of its runs is invalid.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.analysis.backlog import keeping_up
from client.analysis.fairness import Fairness, fairness
from client.analysis.gates import (
    FAILED,
    INVALID_CLIENT,
    SATURATED,
    VALID,
    Void,
    judge,
    lag_gate,
    void_of,
)
from client.analysis.metrics import Floats, Objectives, measure, shared_warm_up
from client.analysis.results import Calibration, Played, Result
from client.analysis.statistics import (
    Interval,
    expected_max,
    paired_ratio,
    percentile,
    rate_interval,
)
from client.load.servers import handled
from client.load.system import COMPARED

_WORST = (VALID, SATURATED, INVALID_CLIENT, FAILED)


@dataclass(frozen=True, slots=True)
class Point:
    """One system at one load, over all seeds. Latencies in seconds.

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
    e2e_ratio: Interval | None
    ttft_ratio: Interval | None
    tpot_ratio: Interval | None
    latencies: dict[str, Floats]
    latency_n: dict[str, int]
    ok: int
    failed: int
    unfinished: int
    lag_p99_s: float
    goodput: float | None
    attained: float | None
    batch_mean: float | None
    padding: float | None
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
    """Figures and verdicts of all runs, those of one workload over the same stretch."""
    results = []
    for one in played:
        cut = None if one.run.interrupted else shared_warm_up(one.run.workload)
        measured = measure(one.run, objectives, cut)
        verdict = judge(one.run, measured, handled(one.server))
        results.append(Result(one.job, one.run, measured, verdict, one.server, one.iterations))
    return results


def points(results: Sequence[Result], calibration: Calibration) -> list[Point]:
    """The table by load; in it the baseline first, then our modes, then the others."""
    kept, all_runs = final(results), whole(results)
    order = _in_order([r.system for r in kept], calibration.baseline)
    loads = sorted({r.load for r in kept})
    made = []
    for load in loads:
        base = by_seed(all_runs, calibration.baseline, load)
        for name in order:
            mine = [r for r in kept if r.system == name and r.load == load]
            if mine:
                mine_by_seed = by_seed(all_runs, name, load)
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
    return [r for r in whole(results) if not r.repeat]


def whole(results: Sequence[Result]) -> list[Result]:
    """All but an interrupted run, which had less than its load and is only raw data."""
    return [r for r in results if not r.run.interrupted]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The ratio of dynamic to static that length variance alone predicts, and the measured one."""

    batch: float
    predicted: float
    measured: Interval | None
    load: float


def length_variance_gain(
    results: Sequence[Result], static: str, load: float, measured: Interval | None
) -> Prediction | None:
    """E[max of B]/E[out] at the batch size that static really had at that load; ``measured`` is
    the ratio of the limits.

    A static batch computes until its longest row is done, so of B rows' slots only E[out]/E[max]
    are used (Orca, OSDI'22, 2). Padding, prefill and the speed of a slot are not included.
    """
    mine = [r for r in final(results) if r.system == static and r.load == load]
    kept = [r for r in mine if _sound(r)] or mine
    sizes = [size for r in kept if (size := _batch_mean(r)) is not None]
    if not sizes or len(sizes) < len(kept):
        return None
    batch = float(np.mean(sizes))
    lengths = np.array(
        [request.output_tokens for r in kept for request in r.run.workload.requests],
        dtype=np.float64,
    )
    return Prediction(batch, expected_max(lengths, batch) / float(lengths.mean()), measured, load)


def by_seed(results: Sequence[Result], name: str, load: float) -> dict[int, list[Result]]:
    """A system's runs at a load: one a seed, or two where it is the control."""
    found: dict[int, list[Result]] = {}
    for r in results:
        if r.system == name and r.load == load:
            found.setdefault(r.seed, []).append(r)
    return found


def verdict_of(runs: Sequence[Result]) -> tuple[str, tuple[str, ...]]:
    """One word for all seeds of a load, and why.

    Runs with wrong records count only if they are half of all or more. Saturation is judged on the
    evidence of all the others, never on the worst of them.
    """
    wrong = [r for r in runs if not _sound(r)]
    if 2 * len(wrong) >= len(runs):
        word = max((r.verdict.word for r in wrong), key=_WORST.index)
        return word, tuple(dict.fromkeys(r.verdict.reason for r in wrong))
    keeping = keeping_up([r.verdict.backlog for r in runs if _sound(r)])
    reasons = () if keeping.up else (f"backlog: {keeping.found}",)
    left_out = tuple(f"seed {r.seed} left out: {r.verdict.reason}" for r in wrong)
    return VALID if keeping.up else SATURATED, (*reasons, *left_out)


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
    runs = [r for r in sorted(planned, key=lambda r: r.seed) if _sound(r) or not usable]
    sizes = [b for b in (_batch_mean(r) for r in runs) if b is not None]
    shares = [(r.server or {}).get("padding-share") for r in runs]
    paddings = [p for p in shares if isinstance(p, int | float)]
    goodputs = [r.measured.goodput for r in runs if r.measured.goodput is not None]
    names = runs[0].measured.latencies
    pooled = {key: np.concatenate([r.measured.latencies[key] for r in runs]) for key in names}
    if verdict == SATURATED:
        pooled["tpot"] = np.zeros(0)
    own = name == calibration.baseline
    against = (
        verdict_of([r for runs in base.values() for r in runs])[0] if base and not own else None
    )

    def ratio(of: str) -> Interval | None:
        return paired(mine, base, of) if verdict == against == VALID else None

    return Point(
        system=name,
        load=load,
        offered=float(np.mean([r.run.workload.rate or math.nan for r in runs])),
        seeds=tuple(sorted(r.seed for r in planned)),
        verdict=verdict,
        reasons=reasons,
        voids=lag_gate([r.measured for r in runs]).voids,
        throughput=rate_interval([r.measured.throughput for r in runs]),
        e2e_ratio=ratio("e2e"),
        ttft_ratio=ratio("ttft"),
        tpot_ratio=ratio("tpot"),
        latencies=pooled,
        latency_n={key: values.size for key, values in pooled.items()},
        ok=sum(r.measured.ok for r in runs),
        failed=sum(r.measured.failed for r in runs),
        unfinished=sum(r.measured.unfinished for r in runs),
        lag_p99_s=float(np.quantile(np.concatenate([r.measured.lag for r in runs]), 0.99)),
        goodput=float(np.mean(goodputs)) if goodputs else None,
        attained=attained(runs),
        batch_mean=float(np.mean(sizes)) if sizes else None,
        padding=float(np.mean(paddings)) if paddings else None,
        fairness=None
        if verdict == SATURATED
        else fairness([o for r in runs for o in r.run.outcomes], calibration.isolated),
    )


def attained(runs: Sequence[Result]) -> float | None:
    """The share of all that arrived that met the objectives."""
    arrived = sum(r.measured.arrived for r in runs)
    shares = [r.measured.attained for r in runs if r.measured.attained is not None]
    if not shares or not arrived:
        return None
    good = sum((r.measured.attained or 0.0) * r.measured.arrived for r in runs)
    return good / arrived


def paired(
    mine: dict[int, list[Result]], base: dict[int, list[Result]], of: str
) -> Interval | None:
    """The ratio of a figure over the seeds in which both sides are valid."""
    ours, theirs = figures(mine, of), figures(base, of)
    seeds = sorted(ours.keys() & theirs.keys())
    return paired_ratio(
        [ours[s] for s in seeds], [theirs[s] for s in seeds], skewed=of != "throughput"
    )


def figures(runs: dict[int, list[Result]], of: str) -> dict[int, float]:
    """A figure of each seed in which all runs are valid.

    A system that ran twice in a block, before and after the others, counts with the geometric
    mean of both: a machine that grows slower within the block slows both sides alike.
    """
    return {
        seed: math.prod(_figure(r, of) for r in mine) ** (1 / len(mine))
        for seed, mine in runs.items()
        if all(map(_sound, mine))
    }


def _sound(result: Result) -> bool:
    return result.verdict.word in (VALID, SATURATED)


def _figure(result: Result, of: str) -> float:
    if of == "throughput":
        return result.measured.throughput
    values = result.measured.latencies[of]
    return float(np.median(values)) if values.size else math.nan


def _batch_mean(result: Result) -> float | None:
    sizes = (result.server or {}).get("batch-size")
    mean = sizes.get("mean") if isinstance(sizes, dict) else None
    return mean if isinstance(mean, int | float) else None


def as_row(point: Point, notes: Sequence[str] = ()) -> dict[str, Any]:
    """A point as one flat record, for CSV and JSON; empty where a figure is not supported.

    ``notes`` are the models' own remarks.
    """
    row: dict[str, Any] = {
        "system": point.system,
        "load": point.load,
        "offered_requests_per_s": _round(point.offered),
        "seeds": len(point.seeds),
        "verdict": point.verdict,
        "ok": point.ok,
        "failed": point.failed,
        "unfinished": point.unfinished,
    }
    for name, interval in (
        ("throughput_tokens_per_s", point.throughput),
        ("ttft_median_ratio", point.ttft_ratio),
        ("tpot_median_ratio", point.tpot_ratio),
        ("e2e_median_ratio", point.e2e_ratio),
    ):
        row[name] = _round(interval.value if interval else None)
        row[f"{name}_low"] = _round(interval.low if interval else None)
        row[f"{name}_high"] = _round(interval.high if interval else None)
    for name in ("ttft", "tpot", "itl", "e2e", "ttft_sent", "e2e_sent"):
        row[f"{name}_mean_s"] = _round(point.mean(name))
        for p in (50, 90, 95, 99):
            row[f"{name}_p{p}_s"] = _round(point.latency(name, p))
        row[f"{name}_n"] = point.latency_n[name]
    row["dispatch_lag_p99_s"] = _round(point.lag_p99_s)
    row["goodput_requests_per_s"] = _round(point.goodput)
    row["objectives_attained"] = _round(point.attained)
    row["void"] = " ".join(void.figure for void in point.voids)
    row["batch_size_mean"] = _round(point.batch_mean)
    row["padding_share"] = _round(point.padding)
    row["slowdown_jain"] = _round(point.fairness.jain if point.fairness else None)
    row["notes"] = "; ".join(notes)
    return row


def write_summary(rows: Sequence[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _round(value: float | None) -> float | None:
    """Six significant digits; infinity, for an unfinished request, is left empty."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
