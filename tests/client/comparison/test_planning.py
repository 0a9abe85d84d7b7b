"""How long the runs of a comparison last, with how many seeds: by the measured speed."""

from __future__ import annotations

import pytest

from client.analysis.comparison.results import Calibration
from client.analysis.fairness import Isolated
from client.comparison.planning import planned, with_window
from client.comparison.schedule import Plan, schedule
from client.options.compare import options_from, parser

SPENT_S = 60.0


def plan_of(token_s: float, *words: str) -> Plan:
    """For a model with so many seconds a token alone, of which a batch computes four times as many
    a second."""
    options = options_from(parser().parse_args(list(words)))
    calibration = Calibration(
        "nobatch", 1 / (50 * token_s), Isolated(0.0, 0.0, token_s), token_s, 100 * token_s, 8.0,
        streamed=True, requests=20,
    )  # fmt: skip
    limits = {"nobatch": 1.0, "static": 3.0, "dynamic": 4.4}
    return with_window(
        planned(options, calibration, limits, [], together=True), calibration, options, SPENT_S
    )


def sending_s(plan: Plan) -> float:
    return sum(plan.window_of(job.load) for job in schedule(plan))


def test_a_fast_model_has_all_seeds_within_five_minutes() -> None:
    plan = plan_of(0.002)
    assert len(plan.seeds) == 6
    assert sending_s(plan) + SPENT_S < 280


@pytest.mark.parametrize("token_s", [0.008, 0.012, 0.02])
def test_a_slow_model_has_longer_runs_within_ten(token_s: float) -> None:
    plan = plan_of(token_s)
    assert plan.window_s >= 4 * 100 * token_s or len(plan.seeds) == 3
    assert 280 < sending_s(plan) + SPENT_S < 560
    assert 3 <= len(plan.seeds) <= 6


def test_a_slower_model_has_fewer_seeds() -> None:
    counts = [len(plan_of(token_s).seeds) for token_s in (0.002, 0.008, 0.012, 0.02, 0.05)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 3


def test_what_was_asked_for_stays() -> None:
    plan = plan_of(0.02, "--seeds", "2", "--seed", "5", "--budget-s", "150")
    assert plan.seeds == (5, 6)
    assert sending_s(plan) + SPENT_S < 150
