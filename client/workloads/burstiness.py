"""How bursty a list of arrival times is. Pure functions over arrays; no files, no plots."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Counts in windows of one width."""

    window_s: float
    windows: int
    idc: float
    peak_to_mean: float
    cv_rate: float


@dataclass(frozen=True, slots=True)
class Burstiness:
    """What ``describe`` prints.

    ``cv`` of the gaps; ``b`` = (cv-1)/(cv+1) (Goh and Barabasi, EPL 81, 2008); ``memory`` =
    correlation of successive gaps (same paper); ``ties`` = share of gaps that are zero. ``level``
    is judged on cv_rate in windows of a hundredth of the duration: low <= 0.15 < medium <= 0.8 <
    high; None where n does not support one word. The defaults are those of all at once.
    """

    n: int
    duration_s: float
    rate: float = math.inf
    cv: float = math.nan
    b: float = math.nan
    memory: float = math.nan
    ties: float = 1.0
    dispersion: tuple[Dispersion, ...] = ()
    cv_rate: float = math.inf
    level: str | None = "high"


def dispersion(times: Times, duration_s: float, window_s: float) -> Dispersion:
    """IDC = Var/Mean of counts in windows (Cox and Lewis, 1966), and what follows from it.

    cv_rate = sqrt(max(IDC - 1, 0) / mean count): the spread of the underlying rate once Poisson
    noise is taken off, free of scale. Only whole windows count.
    """
    windows = int(duration_s / window_s * (1 + 1e-9))
    if windows < 2:
        raise ValueError(f"{duration_s:g} s hold fewer than two windows of {window_s:g} s")
    which = np.floor(times / window_s).astype(np.int64)
    counts = np.bincount(which[(which >= 0) & (which < windows)], minlength=windows)
    mean = float(counts.mean())
    if mean == 0:
        return Dispersion(window_s, windows, 0.0, 0.0, 0.0)
    idc = float(counts.var(ddof=1)) / mean
    cv_rate = math.sqrt(max(idc - 1, 0.0) / mean)
    return Dispersion(window_s, windows, idc, float(counts.max()) / mean, cv_rate)


def describe(times: Times, duration_s: float) -> Burstiness:
    """Measure a sorted list of arrival times within [0, duration_s]."""
    if times.size < 3:
        raise ValueError("at least three arrivals are needed to describe burstiness")
    gaps = np.diff(times)
    mean_gap = float(gaps.mean())
    if mean_gap <= 0 or duration_s <= 0:
        # All at once: no gap to speak of, everything ties.
        return Burstiness(times.size, duration_s)
    rate = times.size / duration_s
    cv = float(gaps.std(ddof=1)) / mean_gap
    widths = [w / rate for w in (1, 10, 100, 1000) if w / rate * 5 <= duration_s]
    hundredth = dispersion(times, duration_s, duration_s / 100)
    return Burstiness(
        n=times.size,
        duration_s=duration_s,
        rate=rate,
        cv=cv,
        b=(cv - 1) / (cv + 1),
        memory=_correlation(gaps[:-1], gaps[1:]),
        ties=float(np.mean(gaps == 0)),
        dispersion=tuple(dispersion(times, duration_s, w) for w in widths),
        cv_rate=hundredth.cv_rate,
        level=_level(hundredth, times.size),
    )


def _level(found: Dispersion, n: int) -> str | None:
    """A word, where five requests fall into a window and both ends of the interval have the same.

    The sample variance of m counts of an index I scatters by some I sqrt(2 / (m - 1)).
    """
    if n < 5 * found.windows:
        return None
    half = 1.96 * found.idc * math.sqrt(2 / (found.windows - 1))
    mean = n / found.windows
    low, high = (
        math.sqrt(max(idc - 1, 0.0) / mean) for idc in (found.idc - half, found.idc + half)
    )
    words = {"low" if cv <= 0.15 else "medium" if cv <= 0.8 else "high" for cv in (low, high)}
    return words.pop() if len(words) == 1 else None


def idc_curve(times: Times, duration_s: float, points: int = 24) -> tuple[Times, Times]:
    """IDC over windows from one mean gap to a fifth of the duration, for the plot."""
    shortest = duration_s / max(times.size, 10)
    widths = np.geomspace(shortest, duration_s / 5, points)
    return widths, np.array([dispersion(times, duration_s, float(w)).idc for w in widths])


def _correlation(x: Times, y: Times) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if x.size > 1 and x.std() * y.std() > 0 else 0.0
