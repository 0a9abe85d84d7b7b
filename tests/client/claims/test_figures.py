"""What the claims measure, on records made by hand, so that each figure can be worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client.claims.figures import METRICS, in_time, program_per_token_s, programs, service
from client.load.records import Outcome, Run
from client.workloads.workload_file import seal
from tests.client.analysis.made import outcome, run_of


def asking(outcomes: list[Outcome], *signals: dict[str, Any], duration_s: float = 10.0) -> Run:
    run = run_of(outcomes, duration_s)
    requests = [
        replace(r, signals=told) for r, told in zip(run.workload.requests, signals, strict=True)
    ]
    return replace(run, workload=seal({}, requests, duration_s, steady=False))


def value(metric: str, run: Run) -> float:
    return float(METRICS[metric].values(run).mean())


def test_the_service_gap_counts_prompts_once_and_generated_tokens_twice() -> None:
    """User a gets 3 + 2 x 10 by the end, b nothing: a gap of 23 from before the first quarter."""
    mine = outcome(0, at=2.6, first=0.1, gap=0.1, tokens=10)
    late = outcome(1, at=2.6, first=50.0, tokens=10)
    run = asking([mine, late], {"user": "a"}, {"user": "b"})
    assert service(run, "a", np.array([2.5, 2.75, 10.0])).tolist() == [0, 3 + 2 * 1, 23]
    assert value("service_gap", run) == 23


def test_service_before_the_first_quarter_of_the_sends_does_not_count() -> None:
    early, late = outcome(0, at=0.5, first=0.1, tokens=10), outcome(1, at=2.6, first=50.0)
    run = asking([early, late], {"user": "a"}, {"user": "b"})
    assert value("service_gap", run) == 2  # at least a token, since a ratio of 0 says nothing


@pytest.mark.parametrize(
    ("signals", "met"),
    [
        ({}, True),
        ({"ttft_target_s": 0.5}, True),
        ({"ttft_target_s": 0.49}, False),
        ({"tpot_target_s": 0.11}, True),
        ({"tpot_target_s": 0.09}, False),
        ({"deadline_s": 1.0}, True),
        ({"deadline_s": 0.8, "ttft_target_s": 9}, False),
    ],
)
def test_a_response_is_in_time_if_it_met_every_target(signals: dict[str, Any], met: bool) -> None:
    run = asking([outcome(first=0.5, gap=0.1, tokens=5)], signals)
    assert in_time(run).tolist() == [met]


def test_a_failed_response_meets_nothing_and_half_a_request_keeps_shares_above_0() -> None:
    failed = outcome(0, failure="HTTP 500", end_s=None)
    run = asking([failed, outcome(1)], {"deadline_s": 99.0}, {"deadline_s": 99.0})
    assert value("missed", run) == pytest.approx(1.5 / 3)
    good = asking([outcome(0), outcome(1)], {"deadline_s": 99.0}, {"deadline_s": 99.0})
    assert value("missed", good) == pytest.approx(0.5 / 3)


def test_a_program_lasts_from_its_first_call_to_the_end_of_its_last() -> None:
    first = outcome(0, at=1.0, first=0.5, gap=0.1, tokens=5)
    second = outcome(1, at=2.0, first=0.5, gap=0.1, tokens=5, intended_s=None, sent_s=2.0)
    alone = outcome(2, at=0.0, first=0.5, gap=0.1, tokens=5)
    run = asking([first, second, alone], {"program": "p"}, {"program": "p"}, {})
    assert programs(run) == [[0, 1], [2]]
    assert program_per_token_s(run) == pytest.approx([(2.9 - 1.0) / 10, 0.9 / 5])


def test_the_urgent_requests_are_those_of_the_lowest_number() -> None:
    run = asking([outcome(0), outcome(1, first=2.0)], {"priority": 10}, {"priority": 0})
    assert value("urgent_ttft_mean", run) == pytest.approx(2.0)


def test_every_metric_of_the_claims_exists_and_of_latencies_are_seconds() -> None:
    run = asking([outcome(0, first=0.5, gap=0.1, tokens=5)], {})
    assert value("latency_per_token_mean", run) == pytest.approx(0.9 / 5)
    assert np.isclose(METRICS["itl_p99"].values(run), 0.1).all()
    assert value("throughput", run) == pytest.approx(1 / 0.9)
