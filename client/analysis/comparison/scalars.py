"""Figures that are one number for all runs of a point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.analysis.comparison.results import Result


@dataclass(frozen=True, slots=True)
class Scalar:
    """A figure that is one number for all runs of a point. ``column`` names it in files; in tables
    it has a title and a format. ``void``: the figure with which it is void."""

    column: str
    of: Callable[[Sequence[Result]], float | None]
    title: str = ""
    form: str = ""
    void: str = ""


def _attained(runs: Sequence[Result]) -> float | None:
    """The share of all that arrived that met the objectives."""
    arrived = sum(r.measured.arrived for r in runs)
    shares = [r.measured.attained for r in runs if r.measured.attained is not None]
    if not shares or not arrived:
        return None
    good = sum((r.measured.attained or 0.0) * r.measured.arrived for r in runs)
    return good / arrived


def stated(stats: Mapping[str, Any] | None, *path: str) -> float | None:
    """A number that a server states in /stats."""
    value: Any = stats
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def batch_mean(result: Result) -> float | None:
    return stated(result.server, "batch-size", "mean")


def _mean(of: Callable[[Result], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """The mean over the runs that have it."""

    def mean(runs: Sequence[Result]) -> float | None:
        values = [value for value in map(of, runs) if value is not None]
        return float(np.mean(values)) if values else None

    return mean


ATTAINED = Scalar("objectives_attained", _attained, "good", ".0%", "goodput")
BATCH = Scalar("batch_size_mean", _mean(batch_mean), "batch", ".1f")
SCALARS = (
    Scalar(
        "dispatch_lag_p99_s",
        lambda runs: float(np.quantile(np.concatenate([r.measured.lag for r in runs]), 0.99)),
    ),
    Scalar("goodput_requests_per_s", _mean(lambda r: r.measured.goodput)),
    ATTAINED,
    BATCH,
    Scalar("padding_share", _mean(lambda r: stated(r.server, "padding-share"))),
)
