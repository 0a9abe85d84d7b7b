"""What is stated of two systems at a load: medians and tails, over the one that comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.analysis.comparison.headline import headline
from client.analysis.comparison.results import Pair, Result
from client.analysis.comparison.summary import paired, points, runs_by_seed
from client.analysis.figures import THROUGHPUT
from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval
from tests.client.analysis.made import CALIBRATION, outcome, result, run_of, steady

SLOW_S = {"dynamic:hrrn": 1.0, "dynamic:vtc": 0.5}  # TTFT of one request in 25; 0.2 of the others


def played(system: str, seed: int, requests: int) -> Result:
    outcomes = [
        outcome(k, at=k * 10 / requests, first=0.2 if k % 25 else SLOW_S[system], gap=0.01)
        for k in range(requests)
    ]
    return result(steady(outcomes), seed, system=system)


def compared(requests: int) -> Pair:
    results = [played(system, seed, requests) for seed in range(4) for system in sorted(SLOW_S)]
    table = points(results, replace(CALIBRATION, baseline="dynamic:hrrn"))
    assert [point.verdict for point in table] == ["VALID", "VALID"]
    (pair,) = headline(table, Objectives(), 0.9).pairs
    return pair


def test_the_second_policy_is_compared_with_the_first_at_the_median_and_at_p99() -> None:
    pair = compared(requests=100)
    assert (pair.of, pair.over) == ("dynamic:vtc", "dynamic:hrrn")
    median, tail = pair.ratios["ttft"], pair.ratios["ttft_p99"]
    assert median is not None
    assert tail is not None
    assert median.value == pytest.approx(1.0)
    assert tail.value == pytest.approx(0.5)


def ran(system: str, seed: int, tokens: int, *, repeat: bool = False) -> Result:
    """A run of ten seconds that delivered so many tokens."""
    run = run_of([outcome(tokens=tokens, gap=0.01)])
    made = result(run, seed, system=system)
    return replace(made, job=replace(made.job, repeat=repeat))


def ratio(results: list[Result]) -> Interval | None:
    dynamic, static = (runs_by_seed(results, name, 1.0) for name in ("dynamic", "static"))
    return paired(dynamic, static, THROUGHPUT)


def test_a_system_that_ran_before_and_after_the_others_counts_with_the_mean_of_both() -> None:
    """So a machine that slows down by a tenth a run gives the ratio that a steady one gives."""
    results = [
        result
        for seed in range(2)
        for result in (
            ran("dynamic", seed, 200, repeat=True),
            ran("static", seed, 90),
            ran("dynamic", seed, 162),
        )
    ]
    both = ratio(results)
    assert both is not None
    assert both.value == pytest.approx(2.0)
    alone = ratio([r for r in results if not r.job.repeat])
    assert alone is not None
    assert alone.value == pytest.approx(1.8)
