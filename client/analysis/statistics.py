"""The statistics that comparisons rest on. Pure functions over arrays of numbers.

Censored values (a request cut before it ended) are +inf and only move a percentile upwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, stdtrit

Floats = npt.NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)


def least_n(percentile: float) -> int:
    """How many values a percentile needs: the largest of n exceeds it with 97.5 % probability.

    From P(max < x_q) = q^n: 6 for the median, 36, 72 and 368 for p90, p95 and p99.
    """
    return math.ceil(math.log(0.025) / math.log(percentile / 100))


def percentile(values: Floats, p: float) -> float | None:
    """The percentile (nearest rank, so that +inf stays where it is), None where n is too small."""
    return None if values.size < least_n(p) else ranked(values, p)


def ranked(values: Floats, p: float) -> float | None:
    """The same however few values there are, None for none: to be shown with its interval."""
    if not values.size:
        return None
    rank = max(math.ceil(values.size * p / 100), 1)
    return float(np.partition(values, rank - 1)[rank - 1])


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % confidence interval; None bounds where one cannot be given."""

    value: float
    low: float | None
    high: float | None


def percentile_interval(values: Floats, p: float) -> Interval | None:
    """Order-statistic interval (David and Nagaraja, Order Statistics, 7.1), for independent values.

    None for no values; a bound is None where n is too small for one. Requests of one run are not
    independent, so this is a lower bound on the real uncertainty.
    """
    value = ranked(values, p)
    if value is None:
        return None
    n, q = values.size, p / 100
    at_most = bdtr(np.arange(n + 1.0), n, q)
    low, high = np.searchsorted(at_most, 0.025, "right"), np.searchsorted(at_most, 0.975)
    ordered = np.sort(values)
    return Interval(
        value,
        float(ordered[low - 1]) if low else None,
        float(ordered[high]) if high < n else None,
    )


def mean_interval(values: Sequence[float], *, skewed: bool = False) -> Interval:
    """Student-t interval of a mean over independent repeats.

    ``skewed`` values cost a further degree of freedom. For six log-ratios of latencies, whose skew
    is -1, the 95 % interval otherwise contains the truth 92 times in 100, with it 93 to 94 times.
    """
    n, mean = len(values), float(np.mean(values))
    if n < 2 + skewed:
        return Interval(mean, None, None)
    half = student_t(n - 1 - skewed) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def excludes(good: float, n: int, share: float) -> bool:
    """Whether so many good ones of n independent requests would be a surprise if the true share
    were this: the score test, whose interval is Wilson's (JASA 22, 1927)."""
    z = NormalDist().inv_cdf(0.975)
    return abs(good / n - share) > z * math.sqrt(share * (1 - share) / n)


def rate_interval(values: Sequence[float]) -> Interval:
    """The same for values that are never negative."""
    mean = mean_interval(values)
    return mean if mean.low is None else Interval(mean.value, max(0.0, mean.low), mean.high)


def paired_ratio(
    a: Sequence[float], b: Sequence[float], *, skewed: bool = False
) -> Interval | None:
    """a/b from repeats that share a workload: exp of the mean log-ratio and its t interval.

    Pairing takes the workload's own variance out (common random numbers; Law, Simulation
    Modeling and Analysis, 11.2). Latencies are ``skewed``: a burst delays the slower side more.
    None where a value is missing, zero or infinite.
    """
    if not a or len(a) != len(b):
        return None
    if not all(math.isfinite(v) and v > 0 for v in (*a, *b)):
        return None
    logs = mean_interval([math.log(x / y) for x, y in zip(a, b, strict=True)], skewed=skewed)
    return exponential(logs)


def exponential(logs: Interval) -> Interval:
    """The interval of what has these logarithms."""
    low, high = (None if x is None else math.exp(x) for x in (logs.low, logs.high))
    return Interval(math.exp(logs.value), low, high)


def student_t(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t."""
    return float(stdtrit(degrees, 0.975))


def slope(x: Floats, y: Floats) -> Interval:
    """Least-squares slope of y on x with its t interval."""
    n = x.size
    centred = x - x.mean()
    square = float(np.sum(centred**2))
    if n < 3 or square == 0:
        return Interval(0.0, None, None)
    value = float(np.sum(centred * (y - y.mean()))) / square
    residual = y - y.mean() - value * centred
    half = student_t(n - 2) * math.sqrt(float(np.sum(residual**2)) / (n - 2) / square)
    return Interval(value, value - half, value + half)
