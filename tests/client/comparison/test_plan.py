"""Which runs a comparison makes, in which order, and how long they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.analysis.comparison.results import Calibration
from client.analysis.metrics import Isolated
from client.comparison.plan import Plan, planned, schedule, telling_loads
from client.load.servers.processes import System
from client.options.compare import options_from, parser

NAMES = ("nobatch", "static", "dynamic")
LOADS = (0.7, 2.0, 8.0)
SPENT_S = 60.0


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "systems": tuple(System(name, ("x",), None) for name in NAMES), "loads": LOADS,
        "seeds": tuple(range(6)), "control": "dynamic", "window_s": 1.0,
        "drain_s": 1.0, "folder": Path(), "order_seed": 0, "together": True, **changes,
    }  # fmt: skip
    return Plan(**values)


def test_compared_runs_are_back_to_back_and_a_steady_drift_of_the_machine_cancels() -> None:
    """Each run is a percent slower than the one before it."""
    jobs = schedule(plan())
    at = {(j.system, j.load, j.seed, j.repeat): number for number, j in enumerate(jobs)}
    assert len(at) == 6 * (3 * 3 + 1)
    for of, over in (("dynamic", "nobatch"), ("dynamic", "static"), ("static", "nobatch")):
        for load in LOADS:
            apart = [at[of, load, s, False] - at[over, load, s, False] for s in range(6)]
            assert sum(apart) == 0
            assert max(map(abs, apart)) < 3
    control = [at["dynamic", 8.0, s, True] - at["dynamic", 8.0, s, False] for s in range(6)]
    assert sum(control) == 0
    assert {abs(gap) for gap in control} == {3}, "as far apart as any two that are compared"
    orders = [list(dict.fromkeys(j.load for j in jobs if j.seed == seed)) for seed in range(6)]
    assert len(set(map(tuple, orders))) > 1, "loads come in random order"


def told(asked: Plan) -> dict[str, set[float]]:
    """At which loads each system plays."""
    return {c.name: {j.load for j in schedule(asked) if j.system == c.name} for c in asked.systems}


def test_a_system_far_beyond_its_limit_plays_only_the_highest_load() -> None:
    asked = plan(loads=(0.7, 2.0, 5.0, 8.0), limits={"nobatch": 1.0, "static": 3.0, "dynamic": 6.0})
    assert told(asked) == {
        "nobatch": {0.7, 2.0, 8.0},  # the first that it cannot keep up with, and the last
        "static": {*asked.loads},
        "dynamic": {*asked.loads},
    }


def test_runs_are_longer_and_end_at_once_where_only_limits_are_compared() -> None:
    asked = plan(loads=(0.7, 5.0, 12.0), limits={"nobatch": 1.0, "static": 3.0, "dynamic": 6.0})
    assert [asked.window_of(load) for load in asked.loads] == [1.0, 1.0, 3.0]
    drains = {(j.system, j.load): asked.drain_of(j) for j in schedule(asked)}
    assert {drains[name, 12.0] for name in NAMES} == {0.0}
    assert drains["dynamic", 0.7] == drains["dynamic", 5.0] == 1.0
    assert 0 < drains["static", 5.0] < 1, "its latencies are drawn"
    assert plan().window_of(8.0) == 1.0, "no limit is known"


@given(st.lists(st.floats(0.2, 500), min_size=1, max_size=5))
def test_loads_lie_below_the_first_limit_between_those_apart_and_beyond_the_last(
    limits: list[float],
) -> None:
    loads = telling_loads(limits)
    knees = sorted(limits)
    assert list(loads) == sorted(set(loads))
    assert loads[0] < knees[0]
    assert loads[-1] > 1.5 * knees[-1]
    for a, b in pairwise(knees):
        assert b <= 2 * a or any(a * 1.1 < load < b / 1.1 for load in loads)


@pytest.mark.parametrize(
    ("limits", "load"),
    [
        ({"nobatch": 1.0, "static": 6.0, "dynamic": 8.0}, 2.4),
        ({"nobatch": 1.0, "static": 0.5, "dynamic": 8.0}, 0.7),
        ({"nobatch": 1.0, "dynamic": 8.0}, 0.7),  # it did not start
    ],
)
def test_a_system_beside_another_plays_the_highest_load_with_which_that_one_keeps_up(
    limits: dict[str, float], load: float
) -> None:
    beside = System("static:nowait", ("x",), None, beside="static")
    three = plan(loads=(0.7, 2.4, 16.0), limits=limits)
    four = replace(three, systems=(*three.systems, beside))
    assert told(four) == told(three) | {"static:nowait": {load}}
    assert len(schedule(four)) == len(schedule(three)) + len(four.seeds), "one run a seed"
    assert [four.window_of(x) for x in four.loads] == [three.window_of(x) for x in four.loads]


def planned_for(token_s: float) -> Plan:
    """For a model with so many seconds a token alone, of which a batch computes four times as many
    a second."""
    options = options_from(parser().parse_args([]))
    unit = Calibration(
        "nobatch", 1 / (50 * token_s), Isolated(0.0, 0.0, token_s), token_s, 100 * token_s, 8.0,
        streamed=True, requests=20,
    )  # fmt: skip
    limits = {"nobatch": 1.0, "static": 3.0, "dynamic": 4.4}
    return planned(options, unit, limits, (), together=True, spent_s=SPENT_S)


def ends_s(plan: Plan) -> float:
    return SPENT_S + sum(plan.window_of(job.load) for job in schedule(plan))


def test_a_slower_model_has_longer_runs_then_more_time_then_fewer_seeds() -> None:
    fast, *slow = (planned_for(token_s) for token_s in (0.002, 0.008, 0.012, 0.02, 0.05))
    assert len(fast.seeds) == 6
    assert ends_s(fast) < 280
    counts = [len(plan.seeds) for plan in slow]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 3
    for plan, token_s in zip(slow[:3], (0.008, 0.012, 0.02), strict=True):
        assert plan.window_s >= 4 * 100 * token_s or len(plan.seeds) == 3
        assert 280 < ends_s(plan) < 560
