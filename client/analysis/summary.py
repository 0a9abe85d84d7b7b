"""From runs to the comparison's table: figures per contestant and load, ratios with intervals.

Pure. Percentiles are of the pooled sample; ratios are paired over seeds. A run repeated because
the client was late is replaced by its repeat; a point with a run that stayed invalid is invalid.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.analysis.gates import FAILED, INVALID_CLIENT, SATURATED, VALID
from client.analysis.metrics import Fairness, Floats, fairness
from client.analysis.results import MODES, Calibration, Result
from client.analysis.statistics import (
    Interval,
    expected_max,
    paired_ratio,
    percentile,
    rate_interval,
)

_WORST = (VALID, SATURATED, INVALID_CLIENT, FAILED)


@dataclass(frozen=True, slots=True)
class Point:
    """One contestant at one load, over all seeds. Latencies in seconds."""

    contestant: str
    load: float
    offered: float
    seeds: tuple[int, ...]
    verdict: str
    reasons: tuple[str, ...]
    throughput: Interval
    throughput_ratio: Interval | None
    e2e_ratio: Interval | None
    ttft_ratio: Interval | None
    latencies: dict[str, Floats]
    latency_n: dict[str, int]
    ok: int
    failed: int
    unfinished: int
    lag_p99_s: float
    goodput: float | None
    batch_mean: float | None
    padding: float | None
    fairness: Fairness | None

    @property
    def usable(self) -> bool:
        """Whether its figures may be compared at all."""
        return self.verdict in (VALID, SATURATED)

    def latency(self, name: str, p: float) -> float | None:
        return percentile(self.latencies[name], p)

    def mean(self, name: str) -> float | None:
        """None where there is nothing, or where an unfinished request makes it infinite."""
        values = self.latencies[name]
        return float(values.mean()) if values.size and np.isfinite(values).all() else None


@dataclass(frozen=True, slots=True)
class Noise:
    """The same workload played twice: how far the system alone moves the throughput."""

    contestant: str
    load: float
    first: float
    second: float


def points(results: Sequence[Result], calibration: Calibration) -> list[Point]:
    """The table by load; in it the baseline first, then our modes, then the others."""
    kept = final(results)
    order = list(dict.fromkeys(r.contestant for r in kept))
    ranked = list(dict.fromkeys((calibration.baseline, *MODES, *order)))
    order.sort(key=ranked.index)  # runs came in random order
    loads = sorted({r.load for r in kept})
    made = []
    for load in loads:
        base = _by_seed(kept, calibration.baseline, load)
        for name in order:
            mine = _by_seed(kept, name, load)
            if mine:
                made.append(_point(name, load, mine, base, calibration))
    return made


def final(results: Sequence[Result]) -> list[Result]:
    """The last attempt of each planned run, without the repeats that show the noise.

    A run that was interrupted is in the raw data only: it had less than its load.
    """
    whole = [r for r in results if not r.repeat and not r.run.interrupted]
    last = {(r.contestant, r.load, r.seed): r for r in whole}
    return list(last.values())


def noise(results: Sequence[Result]) -> list[Noise]:
    """Each repeated run beside its first, where both may be believed."""
    first = {(r.contestant, r.load, r.seed): r for r in final(results)}
    second = {
        (r.contestant, r.load, r.seed): r for r in results if r.repeat and not r.run.interrupted
    }
    return [
        Noise(r.contestant, r.load, first[key].measured.throughput, r.measured.throughput)
        for key, r in second.items()
        if key in first and _sound(first[key]) and _sound(r)
    ]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the variance of lengths alone promises dynamic over static, beside what was found."""

    batch: float
    predicted: float
    measured: Interval | None
    load: float


def length_variance_gain(results: Sequence[Result], static: str, dynamic: str) -> Prediction | None:
    """E[max of B]/E[out] at the batch size that static really had, at the highest load.

    A static batch computes until its longest row is done, so of B rows' slots only E[out]/E[max]
    are used (Orca, OSDI'22, 2). It says nothing of padding, prefill or how fast a slot is.
    """
    kept = final(results)
    loads = [r.load for r in kept if r.contestant == static]
    if not loads:
        return None
    load = max(loads)
    mine, other = _by_seed(kept, static, load), _by_seed(kept, dynamic, load)
    both = sorted(mine.keys() & other.keys())
    sound = [s for s in both if _sound(mine[s]) and _sound(other[s])]
    seeds = sound or both
    sizes = [_batch_mean(mine[s]) for s in seeds]
    if not seeds or any(size is None for size in sizes):
        return None
    batch = float(np.mean([size for size in sizes if size is not None]))
    lengths = np.array(
        [r.output_tokens for s in seeds for r in mine[s].run.workload.requests], dtype=np.float64
    )
    ratio = paired_ratio(
        [other[s].measured.throughput for s in sound], [mine[s].measured.throughput for s in sound]
    )
    return Prediction(batch, expected_max(lengths, batch) / float(lengths.mean()), ratio, load)


def _by_seed(results: Sequence[Result], name: str, load: float) -> dict[int, Result]:
    return {r.seed: r for r in results if r.contestant == name and r.load == load}


def _point(
    name: str,
    load: float,
    mine: dict[int, Result],
    base: dict[int, Result],
    calibration: Calibration,
) -> Point:
    runs = [mine[s] for s in sorted(mine)]
    verdict = max((r.verdict.word for r in runs), key=_WORST.index)
    paired = [s for s in sorted(mine) if s in base and _sound(mine[s]) and _sound(base[s])]
    sizes = [b for b in (_batch_mean(r) for r in runs) if b is not None]
    shares = [(r.server or {}).get("padding-share") for r in runs]
    paddings = [p for p in shares if isinstance(p, int | float)]
    goodputs = [r.measured.goodput for r in runs if r.measured.goodput is not None]
    names = runs[0].measured.latencies
    pooled = {key: np.concatenate([r.measured.latencies[key] for r in runs]) for key in names}
    own = name == calibration.baseline

    def ratio(of: str) -> Interval | None:
        if own or verdict not in (VALID, SATURATED):
            return None
        return paired_ratio(
            [_figure(mine[s], of) for s in paired], [_figure(base[s], of) for s in paired]
        )

    return Point(
        contestant=name,
        load=load,
        offered=float(np.mean([r.run.workload.rate or math.nan for r in runs])),
        seeds=tuple(sorted(mine)),
        verdict=verdict,
        reasons=tuple(
            dict.fromkeys(r.verdict.reason for r in runs if r.verdict.word == verdict != VALID)
        ),
        throughput=rate_interval([r.measured.throughput for r in runs]),
        throughput_ratio=ratio("throughput"),
        e2e_ratio=ratio("e2e"),
        ttft_ratio=ratio("ttft"),
        latencies=pooled,
        latency_n={key: values.size for key, values in pooled.items()},
        ok=sum(r.measured.ok for r in runs),
        failed=sum(r.measured.failed for r in runs),
        unfinished=sum(r.measured.unfinished for r in runs),
        lag_p99_s=float(np.quantile(np.concatenate([r.measured.lag for r in runs]), 0.99)),
        goodput=float(np.mean(goodputs)) if goodputs else None,
        batch_mean=float(np.mean(sizes)) if sizes else None,
        padding=float(np.mean(paddings)) if paddings else None,
        fairness=fairness([o for r in runs for o in r.run.outcomes], calibration.isolated),
    )


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

    ``notes`` are what the models say about themselves.
    """
    row: dict[str, Any] = {
        "contestant": point.contestant,
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
        ("throughput_ratio", point.throughput_ratio),
        ("ttft_median_ratio", point.ttft_ratio),
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
    """Six significant digits; an unfinished request's infinity is no number to write down."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
