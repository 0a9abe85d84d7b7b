"""How bursty a list of arrival times is. Pure functions over arrays; no files, no plots."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from client.workloads.arrivals import Times


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
    """What ``describe`` prints. ``cv`` of the gaps; ``ties``: the share of gaps that are zero;
    ``cv_rate`` in windows of a hundredth of the duration. The defaults are those of all at once."""

    n: int
    duration_s: float
    rate: float = math.inf
    cv: float = math.nan
    ties: float = 1.0
    dispersion: tuple[Dispersion, ...] = ()
    cv_rate: float = math.inf


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
        return Burstiness(times.size, duration_s)
    rate = times.size / duration_s
    widths = [w / rate for w in (1, 10, 100, 1000) if w / rate * 5 <= duration_s]
    return Burstiness(
        n=times.size,
        duration_s=duration_s,
        rate=rate,
        cv=float(gaps.std(ddof=1)) / mean_gap,
        ties=float(np.mean(gaps == 0)),
        dispersion=tuple(dispersion(times, duration_s, w) for w in widths),
        cv_rate=dispersion(times, duration_s, duration_s / 100).cv_rate,
    )
