"""Ratios of pooled figures and of the best of several, whose intervals come from resampling blocks.

A block is a seed: the runs of all sides under the same workload. A tail of one run rests on a
handful of requests, so the requests of all blocks are pooled, and the uncertainty of the ratio is
that of choosing other blocks, on both sides the same (Davison and Hinkley, Bootstrap Methods, 3.8).
Pure functions over arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from client.analysis.statistics import Floats, Interval, exponential, student_t

SAMPLES = 400
POWER = 0.8  # with which the smallest visible effect is seen


@dataclass(frozen=True, slots=True)
class Effect:
    """The logarithm of a ratio, its standard error, and from how many blocks."""

    log: float
    error: float
    blocks: int

    @property
    def half(self) -> float:
        """Of the 95 % interval. Resampled values spread less than the values themselves do."""
        return student_t(self.blocks - 1) * self.error

    @property
    def interval(self) -> Interval:
        """Of the ratio."""
        return exponential(Interval(self.log, self.log - self.half, self.log + self.half))

    @property
    def visible(self) -> float:
        """The logarithm of the smallest ratio that such an interval excludes 1 for, in `POWER` of
        all cases."""
        return self.half + NormalDist().inv_cdf(POWER) * self.error


def pooled_ratio(
    ours: Sequence[Floats], theirs: Sequence[Floats], rank: float | None, samples: int = SAMPLES
) -> Effect | None:
    """Of the mean (``rank`` None) or a percentile, over blocks of values. None for fewer than two
    blocks, for a block without values, and where a figure is not finite or not above 0."""
    n = len(ours)
    if n < 2 or len(theirs) != n or not all(v.size for v in (*ours, *theirs)):
        return None
    counts = _counts(n, samples)
    sides = [pooled(side, counts, rank) for side in (ours, theirs)]
    if not all(np.isfinite(side).all() and (side > 0).all() for side in sides):
        return None
    logs = np.log(sides[0]) - np.log(sides[1])
    error = float(logs[1:].std()) * math.sqrt(n / (n - 1))
    return Effect(float(logs[0]), error, n)


def pooled(values: Sequence[Floats], counts: npt.NDArray[np.int64], rank: float | None) -> Floats:
    """The figure of all blocks together, once for each row of ``counts`` (how often a block is
    taken)."""
    sizes = np.array([v.size for v in values])
    totals = counts @ sizes
    if rank is None:
        found: Floats = counts @ np.array([v.sum() for v in values]) / totals
        return found
    block = np.repeat(np.arange(len(values)), sizes)
    together = np.concatenate(values)
    order = np.argsort(together, kind="stable")
    together, block = together[order], block[order]
    # nearest rank; tails are found from the top, in the few values that can matter
    beyond = totals - np.maximum(np.ceil(totals * rank / 100), 1) + 1
    kept = together.size
    if rank > 50:
        kept = min(kept, 4 * math.ceil(float(beyond.max())) + 16)
    while True:
        top = together[-kept:][::-1]
        reached = np.cumsum(counts[:, block[-kept:][::-1]], axis=1) >= beyond[:, None]
        if kept == together.size or reached[:, -1].all():
            ranked: Floats = top[np.argmax(reached, axis=1)]
            return ranked
        kept = min(2 * kept, together.size)


def best_ratio(a: Floats, b: Floats) -> Interval | None:
    """The best row of ``a`` over the best row of ``b``: rows are loads, columns the same seeds.

    Rows are compared by their geometric means. The interval is Student's, with the standard error
    of a bootstrap over seeds that chooses both rows again in every sample (Efron and Tibshirani, An
    Introduction to the Bootstrap, 6), times sqrt(n / (n - 1)), since resampled values spread less.
    So with one row on each side it is that of `paired_ratio`. None as there.
    """
    n = a.shape[1]
    if not n or not all(np.isfinite(rows).all() and (rows > 0).all() for rows in (a, b)):
        return None
    a, b = np.log(a), np.log(b)
    value = float(a.mean(axis=1).max() - b.mean(axis=1).max())
    if n == 1:
        return exponential(Interval(value, None, None))
    shares = _counts(n, 10_000)[1:].T / n
    again = (a @ shares).max(axis=0) - (b @ shares).max(axis=0)
    return Effect(value, float(again.std()) * math.sqrt(n / (n - 1)), n).interval


@lru_cache
def _counts(n: int, samples: int) -> npt.NDArray[np.int64]:
    """All blocks once, then samples of them drawn with replacement: (samples + 1, n)."""
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=samples)
    return np.concatenate([np.ones((1, n), dtype=np.int64), drawn])
