"""The figures of runs with deferred requests: latencies relative to a run without, with confidence
intervals, and deferred tokens/s as shares of the spare capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.deferred.play import Measured
from client.analysis.statistics import Floats

BLOCK = 10  # consecutive requests, which had the same queue
RESAMPLES, CONFIDENCE = 500, 0.95


Turns = Mapping[str, Sequence[Measured]]  # by policy and twice `alone`: of each round
Pair = tuple[Measured, Measured]  # a run, and the one without deferred requests


@dataclass(frozen=True, slots=True)
class Relative:
    """A ratio to `alone`, and its `CONFIDENCE` interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """A policy under a load: latencies as ratios to `alone`, deferred tokens/s as shares."""

    shape: str
    load: float
    policy: str
    requests: int  # immediate ones
    ttft_p50: Relative
    ttft_p99: Relative
    tpot_p50: Relative
    tpot_p99: Relative
    deferred_tokens_per_s: float
    of_spare: float


def points(found: Mapping[tuple[str, float], Turns], only: float) -> list[Point]:
    """Points for every shape and load, with the requests of the rounds pooled; and for each load
    over all shapes, the geometric mean of their ratios, since the tail of one shape would dominate
    a common p99. ``only``: tokens a second of deferred requests alone."""
    kinds = {kind: [turns] for kind, turns in found.items()}
    for (_, load), turns in found.items():
        kinds.setdefault(("all", load), []).append(turns)
    made = []
    for (shape, load), here in kinds.items():
        alone = [run.immediate_tokens_per_s for turns in here for run in turns["alone"]]
        spare = only - float(np.mean(alone))
        for name in here[0]:
            runs = [run for turns in here for run in turns[name]]
            tokens_per_s = float(np.mean([run.deferred_tokens_per_s for run in runs]))
            ttft_p50, ttft_p99, tpot_p50, tpot_p99 = ratios(
                [list(zip(turns[name], turns["alone"], strict=True)) for turns in here]
            )
            made.append(
                Point(
                    shape, load, name, sum(run.latencies_s().shape[1] for run in runs),
                    ttft_p50, ttft_p99, tpot_p50, tpot_p99, tokens_per_s, tokens_per_s / spare,
                )
            )  # fmt: skip
    return made


def ratios(shapes: Sequence[Sequence[Pair]]) -> list[Relative]:
    """Ratios of p50 and p99 of TTFT and of TPOT: the geometric mean over the shapes.

    Each shape's are of its rounds' requests together. The intervals are a bootstrap's over blocks
    of requests, the same ones on either side, since both runs of a pair had the same arrivals
    (Kunsch, Annals of Statistics 17, 1989; percentile intervals).
    """
    rng = np.random.default_rng(0)
    logs = np.mean([_log_ratios(pairs, rng) for pairs in shapes], axis=0)
    tails = [50 - 50 * CONFIDENCE, 50 + 50 * CONFIDENCE]
    found = []
    for value, *resampled in np.exp(logs):
        low, high = np.percentile(resampled, tails).tolist()
        found.append(Relative(float(value), low, high))
    return found


def _log_ratios(pairs: Sequence[Pair], rng: np.random.Generator) -> Floats:
    """[4 figures, 1 + RESAMPLES]: the measured ratio of one shape, and those of its resamples."""
    both = np.concatenate(
        [np.stack([run.latencies_s(), alone.latencies_s()]) for run, alone in pairs], axis=2
    )  # [2 sides, 2 kinds, n]
    n = both.shape[2]
    starts = rng.integers(0, n, (RESAMPLES, -(-n // BLOCK)))
    chosen = (starts[:, :, None] + np.arange(BLOCK)).reshape(RESAMPLES, -1)[:, :n] % n
    rows = np.concatenate([np.arange(n)[None], chosen])
    found = []
    for run, alone in both.transpose(1, 0, 2):
        for q in (50, 99):
            mine, other = (np.percentile(side[rows], q, axis=1) for side in (run, alone))
            found.append(np.log(mine / other))
    return np.array(found)
