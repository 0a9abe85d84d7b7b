"""Shortest remaining processing time: by what is predicted to be left, residents included."""

from __future__ import annotations

import pytest

from scheduling.registry import make_policy
from seams import Plan
from serving.config import Config
from tests.batching.modes import DYNAMIC_MODES
from tests.batching.virtual import World, check_closed
from tests.scheduling.shown import Shown, view

CONFIG = Config(mode="dynamic", policy="srpt", max_batch_size=1)
SRPT = next(mode for mode in DYNAMIC_MODES if mode.name == "srpt, reserve")


def plan(waiting: list[Shown], resident: list[Shown], budget: int = 1000, used: int = 0) -> Plan:
    """Of one row, where four requests may be resident."""
    shown = view(waiting, resident, limit=1, max_resident=4, budget=budget, used=used)
    return make_policy("srpt", CONFIG).plan(shown)


def first(*waiting: Shown) -> int:
    (step,) = plan([*waiting], []).advance
    return step.request.id


def test_predicted_lengths_count_not_those_that_are_asked_for() -> None:
    assert first(Shown(1, max_tokens=20), Shown(2, max_tokens=100, predicted=10)) == 2


def test_the_prompt_is_work_too() -> None:
    assert first(Shown(1, prompt_tokens=50, predicted=10), Shown(2, predicted=30)) == 2


def test_what_was_generated_before_a_preemption_is_not_left() -> None:
    nearly_done = Shown(5, max_tokens=60, predicted=50, generated=45, num_preemptions=1)
    assert first(nearly_done, Shown(6, predicted=10)) == 5
    begun = Shown(5, max_tokens=60, predicted=50, generated=5, num_preemptions=1)
    assert first(begun, Shown(6, predicted=10)) == 6


@pytest.mark.parametrize(("generated", "runs"), [(41, 2), (42, 1)])
def test_a_shorter_request_pauses_a_resident_that_has_more_left_which_keeps_its_memory(
    generated: int, runs: int
) -> None:
    """The newcomer has 4 + 4 tokens left."""
    resident = Shown(1, predicted=50, max_tokens=60, generated=generated, computed=3 + generated)
    decided = plan([Shown(2, predicted=4)], [resident])
    assert [step.request.id for step in decided.advance] == [runs]
    assert list(decided.preempt) == []


@pytest.mark.parametrize(("budget", "preempted"), [(21, []), (20, [1])])
def test_the_paused_resident_gives_up_its_memory_only_if_the_shorter_one_needs_it(
    budget: int, preempted: list[int]
) -> None:
    resident = Shown(1, max_tokens=60, generated=1, computed=4, room=12)
    newcomer = Shown(2, max_tokens=5)  # it takes 9
    decided = plan([newcomer], [resident], budget=budget, used=12)
    assert [step.request.id for step in decided.advance] == [2]
    assert [request.id for request in decided.preempt] == preempted


def test_the_clients_prediction_counts_and_without_one_what_was_learnt() -> None:
    world = World(SRPT, max_batch_size=1)
    for seed in range(8):
        world.submit([seed] * 5, 2, seed, user=1)
    world.run()  # so two tokens are likely
    told_long = world.submit([1] * 5, 40, user=1, predicted=30)
    told_short = world.submit([2] * 5, 40, user=1, predicted=9)
    untold = world.submit([3] * 5, 40, user=1)
    world.run()
    check_closed(world)
    began_s = [i.first_token_s for i in (untold, told_short, told_long)]
    assert began_s == sorted(began_s, key=lambda at_s: at_s or 0.0)
