"""The order of a comparison's runs, and which of them are worth their time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.comparison.schedule import Plan, schedule, telling_loads
from client.load.servers.system import System
from client.workloads.recipe import Recipe

NAMES = ("nobatch", "static", "dynamic")


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "systems": tuple(System(name, ("x",), None) for name in NAMES),
        "loads": (0.7, 2.0, 8.0), "seeds": tuple(range(6)), "control": "dynamic",
        "recipe": Recipe(), "window_s": 1.0, "drain_s": 1.0, "folder": Path(), "order_seed": 0,
        "together": True, **changes,
    }  # fmt: skip
    return Plan(**values)


def test_compared_runs_are_back_to_back_and_reversed_from_seed_to_seed() -> None:
    jobs = [job for job in schedule(plan()) if not job.repeat]
    blocks = [jobs[k : k + 3] for k in range(0, len(jobs), 3)]
    for block in blocks:
        assert len({(job.seed, job.load) for job in block}) == 1
        order = NAMES[::-1] if block[0].seed % 2 else NAMES
        assert tuple(job.system for job in block) == order
    assert sorted((b[0].seed, b[0].load) for b in blocks) == sorted(
        (seed, load) for seed in range(6) for load in (0.7, 2.0, 8.0)
    )
    orders = [[b[0].load for b in blocks if b[0].seed == seed] for seed in range(6)]
    assert len({tuple(order) for order in orders}) > 1, "loads come in random order"


def test_a_steady_drift_of_the_machine_cancels_in_every_ratio() -> None:
    """Each run is a percent slower than the one before it."""
    jobs = schedule(plan())
    at = {(j.system, j.load, j.seed, j.repeat): number for number, j in enumerate(jobs)}
    for of, over in (("dynamic", "nobatch"), ("dynamic", "static"), ("static", "nobatch")):
        for load in (0.7, 2.0, 8.0):
            apart = [at[of, load, s, False] - at[over, load, s, False] for s in range(6)]
            assert sum(apart) == 0
    control = [at["dynamic", 8.0, s, True] - at["dynamic", 8.0, s, False] for s in range(6)]
    assert sum(control) == 0
    assert {abs(gap) for gap in control} == {3}, "as far apart as any two that are compared"


def test_with_one_server_at_a_time_each_seed_starts_it_once() -> None:
    jobs = schedule(plan(together=False))
    starts = [a.system for a, b in zip(jobs, [None, *jobs], strict=False)
              if b is None or a.system != b.system]  # fmt: skip
    # the last of a seed is the first of the next
    assert starts == [*NAMES, "static", "nobatch", "static", "dynamic", "static", "nobatch",
                      "static", "dynamic", "static", "nobatch"]  # fmt: skip
    assert len(jobs) == len(schedule(plan()))


def test_a_system_far_beyond_its_limit_plays_only_the_highest_load() -> None:
    asked = plan(loads=(0.7, 2.0, 5.0, 8.0), limits={"nobatch": 1.0, "static": 3.0, "dynamic": 6.0})
    told = {name: {j.load for j in schedule(asked) if j.system == name} for name in NAMES}
    assert told["nobatch"] == {0.7, 2.0, 8.0}, "the first that it cannot keep up with, and the last"
    assert told["static"] == told["dynamic"] == {0.7, 2.0, 5.0, 8.0}


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
        if b > 2 * a:
            assert any(a * 1.1 < load < b / 1.1 for load in loads)


def test_the_limits_of_the_three_modes_give_four_loads() -> None:
    assert telling_loads([1.0, 6.1, 3.6]) == pytest.approx((0.7, 1.9, 4.7, 12.0))


def test_a_system_beside_another_plays_the_highest_load_with_which_that_one_keeps_up() -> None:
    beside = System("static:nowait", ("x",), None, beside="static")
    limits = {"nobatch": 1.0, "static": 6.0, "dynamic": 8.0}
    three = plan(loads=(0.7, 2.4, 16.0), limits=limits)
    four = replace(three, systems=(*three.systems, beside))
    jobs = schedule(four)
    assert {j.load for j in jobs if j.system == "static:nowait"} == {2.4}
    assert len(jobs) == len(schedule(three)) + len(four.seeds), "one run a seed"
    assert four.window_of(16.0) == three.window_of(16.0) > four.window_of(2.4)
    lost = replace(four, limits={**limits, "static": 0.5})
    assert {j.load for j in schedule(lost) if j.system == "static:nowait"} == {0.7}
    unknown = {name: limit for name, limit in limits.items() if name != "static"}
    without = replace(four, limits=unknown)
    assert {j.load for j in schedule(without) if j.system == "static:nowait"} == {0.7}, (
        "of a server that did not start, no load is known with which it keeps up"
    )
