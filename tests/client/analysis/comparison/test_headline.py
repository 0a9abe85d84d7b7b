"""What is stated of two systems at a load: medians and tails, over the one that comes first."""

from __future__ import annotations

import pytest

from client.analysis.comparison.headline import headline
from client.analysis.comparison.results import Calibration, Pair, Result
from client.analysis.comparison.summary import points
from client.analysis.fairness import Isolated
from client.analysis.metrics import Objectives
from tests.client.analysis.made import outcome, result, steady

CALIBRATION = Calibration(
    baseline="dynamic:hrrn", capacity=10.0, isolated=Isolated(0.0, 0.0, 0.1), ttft_s=0.1,
    longest_s=1.0, start_s=1.0, streamed=True, requests=100,
)  # fmt: skip
SLOW_S = {"dynamic:hrrn": 1.0, "dynamic:vtc": 0.5}  # TTFT of one request in 25; 0.2 of the others


def played(system: str, seed: int, requests: int) -> Result:
    outcomes = [
        outcome(k, at=k * 10 / requests, first=0.2 if k % 25 else SLOW_S[system], gap=0.01)
        for k in range(requests)
    ]
    return result(steady(outcomes), seed, system=system)


def compared(requests: int) -> Pair:
    results = [played(system, seed, requests) for seed in range(4) for system in sorted(SLOW_S)]
    table = points(results, CALIBRATION)
    assert [point.verdict for point in table] == ["VALID", "VALID"]
    (pair,) = headline(results, table, Objectives(), 0.9).pairs
    return pair


def test_the_second_policy_is_compared_with_the_first_at_the_median_and_at_p99() -> None:
    pair = compared(requests=100)
    assert (pair.of, pair.over) == ("dynamic:vtc", "dynamic:hrrn")
    median, tail = pair.ratios["ttft"], pair.tails["ttft_p99"]
    assert median is not None
    assert tail is not None
    assert median.value == pytest.approx(1.0)
    assert tail.value == pytest.approx(0.5)


def test_too_few_requests_of_all_seeds_together_have_no_p99() -> None:
    """It takes 368."""
    pair = compared(requests=75)
    assert pair.ratios["ttft"] is not None
    assert pair.tails["ttft_p99"] is None
