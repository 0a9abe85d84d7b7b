"""What the benchmark compares: policies under the same arrivals, with and without a backlog."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.deferred.bench import Noted
from client.workloads.arrivals import horizon, parse_arrivals
from scheduling.classes.simple import Exclusive, Priority
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import Policy

SHAPES = {"poisson": "poisson", "medium": "plan:medium", "high": "plan:high"}
BACKLOG = 64  # waiting deferred requests, at all times
ALONE = ("alone", "alone again")  # without the backlog

Make = Callable[[Predictor], Policy]


def policies(factors: Sequence[float], max_step_s: float) -> dict[str, Make]:
    def budget(factor: float) -> Make:
        return lambda predictor: Noted(Orca(), predictor, factor, max_step_s)

    return {
        **dict.fromkeys(ALONE, lambda _: Orca()),
        **{f"budget {factor:g}": budget(factor) for factor in factors},
        "fifo": lambda _: Orca(),
        "priority": lambda _: Priority(Orca()),
        "exclusive": lambda _: Exclusive(Orca()),
    }


def arrivals(shape: str, rate: float, duration_s: float, seed: int) -> list[float]:
    """Times of one path, in seconds, at exactly this rate on average."""
    process = parse_arrivals(SHAPES[shape])
    n = max(2, round(rate * duration_s))
    times = process.unit_times(n, np.random.SeedSequence(seed))
    times = times * (duration_s / max(horizon(process, times), float(times[-1])))
    return [float(at_s) for at_s in times]
