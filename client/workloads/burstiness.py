"""How bursty a list of arrival times is. Pure functions over arrays; no files, no plots."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from client.workloads.arrivals import Times

_HOUR_S = 3600


def dispersion(times: Times, duration_s: float, window_s: float) -> dict[str, Any]:
    """Of counts in windows of one width: IDC = Var/Mean (Cox and Lewis, 1966), and what follows
    from it.

    cv_rate = sqrt(max(IDC - 1, 0) / mean count): the spread of the underlying rate once Poisson
    noise is taken off, free of scale. Only whole windows count.
    """
    windows = int(duration_s / window_s * (1 + 1e-9))
    if windows < 2:
        raise ValueError(f"{duration_s:g} s hold fewer than two windows of {window_s:g} s")
    which = np.floor(times / window_s).astype(np.int64)
    counts = np.bincount(which[(which >= 0) & (which < windows)], minlength=windows)
    mean = float(counts.mean())
    idc = float(counts.var(ddof=1)) / mean if mean else 0.0
    return {
        "window_s": window_s,
        "windows": windows,
        "idc": idc,
        "peak_to_mean": float(counts.max()) / mean if mean else 0.0,
        "cv_rate": math.sqrt(max(idc - 1, 0.0) / mean) if mean else 0.0,
    }


def describe(times: Times, duration_s: float) -> dict[str, Any]:
    """Of sorted arrival times within [0, duration_s]: ``cv`` of the gaps; ``ties``, the share of
    gaps that are zero; `dispersion` in windows of several widths; ``cv_rate`` in those of a
    hundredth of the duration; of more than two hours the `busiest_hour`. Arrivals all at once have
    no rate and no CV: None."""
    if times.size < 3:
        raise ValueError("at least three arrivals are needed to describe burstiness")
    gaps = np.diff(times)
    mean_gap = float(gaps.mean())
    found: dict[str, Any] = {"n": times.size, "duration_s": duration_s}
    if mean_gap <= 0 or duration_s <= 0:  # all at once
        none = dict.fromkeys(("rate", "cv", "cv_rate", "busiest_hour"))
        return {**found, **none, "ties": 1.0, "dispersion": []}
    rate = times.size / duration_s
    widths = [w / rate for w in (1, 10, 100, 1000) if w / rate * 5 <= duration_s]
    return {
        **found,
        "rate": rate,
        "cv": float(gaps.std(ddof=1)) / mean_gap,
        "ties": float(np.mean(gaps == 0)),
        "dispersion": [dispersion(times, duration_s, w) for w in widths],
        "cv_rate": dispersion(times, duration_s, duration_s / 100)["cv_rate"],
        "busiest_hour": busiest_hour(times, duration_s) if duration_s > 2 * _HOUR_S else None,
    }


def busiest_hour(times: Times, duration_s: float) -> dict[str, float]:
    """The hour from a whole second on with the most arrivals; of several, the first."""
    starts = np.floor(np.minimum(times, duration_s - _HOUR_S))
    counts = np.searchsorted(times, starts + _HOUR_S) - np.searchsorted(times, starts)
    most = int(counts.argmax())
    return {"start_s": float(starts[most]), "rate": float(counts[most]) / _HOUR_S}
