"""Intervals of whole comparisons, on a queue whose truth has a closed form.

Simulated runs go through the shared window, the gates, the verdicts and the pairing as real ones
do. One server works on one request at a time, first come, first served (M/M/1): the time in the
system is exponential with rate mu - lambda (Kleinrock, Queueing Systems I, 3.2), and a saturated
server gives exactly its service rate. The other is faster and plays the same arrivals and sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from client.analysis.comparison.headline import headline
from client.analysis.comparison.results import Job, Played
from client.analysis.comparison.summary import measured_together, points
from client.analysis.metrics import Isolated, Objectives
from client.analysis.statistics import Interval
from client.load.records import Outcome, Run
from client.workloads.workload_file import Workload
from tests.client.analysis.made import CALIBRATION

Floats = npt.NDArray[np.float64]

COMPARISONS, SEEDS, TOKENS, DRAIN_S = 500, 6, 10, 25.0
SLOW, FAST = 1.0, 1.5  # requests a second of a busy server
SLOW_ALONE = replace(CALIBRATION, baseline="slow", isolated=Isolated(0.0, 0.0, 1 / TOKENS))


def departures(arrivals: Floats, service: Floats) -> Floats:
    """Lindley's recursion for all runs at once: (runs, requests) in, times of the ends out."""
    ends = np.empty_like(arrivals)
    free = np.zeros(len(arrivals))
    for k in range(arrivals.shape[1]):
        free = np.maximum(free, arrivals[:, k]) + service[:, k]
        ends[:, k] = free
    return ends


def simulated(rate: float, n: int, rng: np.random.Generator) -> Iterator[list[Played]]:
    """Comparisons of two servers, each over six seeds; sizes stratified as workloads have them."""
    runs = COMPARISONS * SEEDS
    arrivals = np.cumsum(rng.exponential(1 / rate, (runs, n)), axis=1)
    arrivals *= (n / rate) / arrivals[:, -1:]
    levels = (rng.permuted(np.tile(np.arange(n), (runs, 1)), axis=1) + rng.random((runs, n))) / n
    sizes = -np.log1p(-levels)
    duration_s = n / rate
    # the sampler's clock is not in step with the requests
    steps = np.arange(60) * duration_s / 60
    grid = (steps + rng.uniform(0, duration_s / 60, steps.size)).round(9)
    ends = {name: departures(arrivals, sizes / mu) for name, mu in (("slow", SLOW), ("fast", FAST))}
    for first in range(0, runs, SEEDS):
        played = []
        for seed in range(SEEDS):
            row = first + seed
            workload = Workload({}, (None,) * n, duration_s, True, None, "")  # type: ignore[arg-type]
            for name in ("slow", "fast"):
                run = as_run(arrivals[row], ends[name][row], grid, workload)
                played.append(Played(Job(name, rate, seed, repeat=False), run, None))
        yield played


def as_run(arrivals: Floats, ends: Floats, grid: Floats, workload: Workload) -> Run:
    """Records as the client makes them, without streams."""
    cut_s = workload.duration_s + DRAIN_S
    counts = np.searchsorted(arrivals, grid) - np.searchsorted(ends, grid)
    outcomes = []
    for k, (at, end) in enumerate(zip(arrivals.tolist(), ends.tolist(), strict=True)):
        done = end <= cut_s
        outcomes.append(
            Outcome(
                k, "immediate", None, TOKENS, at, at, end if done else None, end if done else None,
                min(end, cut_s), (), 1, TOKENS if done else None, None, "server",
                None if done else "cut", not done,
            )
        )  # fmt: skip
    samples = tuple(zip(grid.tolist(), counts.tolist(), strict=True))
    return Run("t", workload, tuple(outcomes), samples, cut_s, "ids", streamed=False)


def compared(played: list[Played]) -> dict[str, Interval | None]:
    found = headline(points(measured_together(played, None), SLOW_ALONE), Objectives(), 0.9)
    throughput = [r.throughput for r in found.limit_ratios if r.of == "fast"]
    e2e = [p.ratios["e2e"] for p in found.pairs if p.of == "fast"]
    return {"throughput": next(iter(throughput), None), "e2e": next(iter(e2e), None)}


def held(figure: str, rate: float, requests: int, truth: float) -> list[bool]:
    """Whether each interval that was given holds the truth; hardly any is withheld."""
    found = [compared(p) for p in simulated(rate, requests, np.random.default_rng(20))]
    given = [pair[figure] for pair in found if pair[figure] is not None]
    assert len(given) >= 0.97 * COMPARISONS
    other = "e2e" if figure == "throughput" else "throughput"
    assert all(pair[other] is None for pair in found), "none where it would mean nothing"
    return [(i.low or 0.0) <= truth <= (i.high or 0.0) for i in given if i is not None]


@pytest.mark.parametrize(
    ("figure", "rate", "requests", "truth"),
    [
        ("e2e", 0.3 * SLOW, 60, (SLOW - 0.3) / (FAST - 0.3)),
        ("throughput", 2 * FAST, 30, FAST / SLOW),
    ],
    ids=["latency below saturation", "throughput beyond it"],
)
def test_95_percent_intervals_hold_the_truth_in_92_to_98_of_100_comparisons(
    figure: str, rate: float, requests: int, truth: float
) -> None:
    assert 0.92 <= np.mean(held(figure, rate, requests, truth)) <= 0.98
