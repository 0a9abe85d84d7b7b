"""Whether a server keeps up with its load, in one run or in several runs of one load together.

Growth of a queue is noise in one short run and evidence in six, so the slopes of all runs are
averaged and judged once, with their common interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.analysis.metrics import Measured
from client.analysis.statistics import Interval, mean_interval, slope
from client.load.records import Run

UNDONE = 0.02  # of the arrivals: a server that leaves more does not keep up
_GREW = 3.0  # requests: fewer are no queue


@dataclass(frozen=True, slots=True)
class Slopes:
    """How a run's queue grew: requests in flight (per s), in its later half, and TTFT (s per s)."""

    span_s: float
    in_flight: Interval
    later: Interval
    wait: Interval


@dataclass(frozen=True, slots=True)
class Backlog:
    """One run's evidence. ``slopes`` is None where the run is too short, or its load not steady."""

    planned: int
    unfinished: int
    offered: float
    slopes: Slopes | None


def backlog(run: Run, m: Measured) -> Backlog:
    """The evidence of a run; cut requests of an interrupted run do not count."""
    slopes = _slopes(run, m) if run.workload.steady and run.workload.users is None else None
    return Backlog(m.planned, 0 if run.interrupted else m.unfinished, m.offered, slopes)


def _slopes(run: Run, m: Measured) -> Slopes | None:
    end_s = run.window_end_s
    window = [(t, n) for t, n in run.in_flight if m.warm_up_s <= t <= end_s]
    origin, first = m.requests["origin_s"], m.requests["first_s"]
    begun = ~np.isnan(first) & (origin >= m.warm_up_s)
    if len(window) < 20 or begun.sum() < 6:
        return None
    # Samples of a queue are correlated over a residence; thinned, their slope can be judged.
    window = window[:: max(1, round(len(window) / 20))]
    times = np.array([t for t, _ in window])
    counts = np.array([n for _, n in window], dtype=np.float64)
    half = len(window) // 2
    return Slopes(
        span_s=float(times[-1] - times[0]),
        in_flight=slope(times, counts),
        later=slope(times[half:], counts[half:]),
        wait=slope(origin[begun], (first - origin)[begun]),
    )


@dataclass(frozen=True, slots=True)
class Keeping:
    """Whether a server kept up, and the evidence."""

    up: bool
    found: str


def keeping_up(runs: Sequence[Backlog]) -> Keeping:
    """Judge all runs of one load together."""
    planned, unfinished = sum(r.planned for r in runs), sum(r.unfinished for r in runs)
    if unfinished > UNDONE * planned:
        return Keeping(
            up=False,
            found=f"{unfinished} of {planned} requests had not ended when the run was cut",
        )
    known = [r.slopes for r in runs if r.slopes is not None]
    if not known:
        return Keeping(up=True, found="too short for a verdict, or the load itself varies")
    grows, later, wait = (
        _mean([getattr(s, name) for s in known]) for name in ("in_flight", "later", "wait")
    )
    growth = sum(s.in_flight.value * s.span_s for s in known)
    # Arrivals beyond the limit wait in the queue, each longer than the previous one by their share
    # of the time between them; or they are served, more slowly, and the requests in flight grow.
    offered = sum(r.offered for r in runs) / len(runs)
    goes_on = (later.low or 0.0) > 0 and later.value > UNDONE * offered
    undone = wait.value > UNDONE or goes_on
    both = (grows.low or 0.0) > 0 and (wait.low or 0.0) > 0
    return Keeping(
        up=not (both and undone and growth > _GREW),
        found=f"{growth:+.1f} requests over the sends, TTFT {wait.value * 1e3:+.0f} ms/s",
    )


def _mean(slopes: Sequence[Interval]) -> Interval:
    """The mean slope; its interval is from the spread of three or more runs, else from their
    own."""
    n = len(slopes)
    if n > 2:
        return mean_interval([s.value for s in slopes])
    value = sum(s.value for s in slopes) / n
    halves = [s.value - s.low for s in slopes if s.low is not None]
    if len(halves) < n:
        return Interval(value, None, None)
    half = math.sqrt(sum(h * h for h in halves)) / n
    return Interval(value, value - half, value + half)
