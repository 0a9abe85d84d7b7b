"""Orders that pause residents: who runs, who waits, and whose memory is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduling.composed import Pausing
from scheduling.policies.orders.mlfq import MLFQ
from scheduling.policies.orders.priority import ByPriority
from scheduling.policies.orders.program import FIRST_LEVEL, Program
from scheduling.policies.stall_free import StallFree
from scheduling.registry import make_policy
from seams import Policy, Served
from serving.config import Config
from tests.batching.modes import DYNAMIC_MODES
from tests.batching.virtual import World, check_closed
from tests.scheduling.shown import Shown, advanced, decoding, order_of, view


def policy(name: str, rows: int = 1) -> Policy:
    return make_policy(name, Config(mode="dynamic", max_batch_size=rows))


def runs(
    by: Policy,
    waiting: Sequence[Shown],
    resident: Sequence[Shown] = (),
    *,
    rows: int = 1,
    budget: int = 1000,
    used: int = 0,
) -> tuple[set[int], list[int]]:
    """Who runs in so many rows, and who is preempted; eight may be resident."""
    shown = view(waiting, resident, limit=rows, max_resident=8, budget=budget, used=used)
    plan = by.plan(shown)
    return {step.request.id for step in plan.advance}, [request.id for request in plan.preempt]


@pytest.mark.parametrize(
    ("name", "one", "other", "overtakes"),
    [
        ("priority", Shown(1, priority=2), Shown(2, priority=-1), True),
        ("priority", Shown(1), Shown(2), False),
        ("srpt", Shown(1, max_tokens=20), Shown(2, max_tokens=100, predicted=10), True),
        # what was generated before a preemption is not left
        ("srpt", Shown(1, predicted=50, generated=5), Shown(2, predicted=10), True),
        ("srpt", Shown(1, predicted=50, generated=45), Shown(2, predicted=10), False),
        ("mlfq", Shown(1, prompt_tokens=70), Shown(2, prompt_tokens=9), True),
        ("mlfq", Shown(1, prompt_tokens=20), Shown(2, prompt_tokens=9), False),
    ],
)
def test_of_two_that_wait_the_first_by_the_order_runs_and_equals_go_by_arrival(
    name: str, one: Shown, other: Shown, overtakes: bool
) -> None:
    assert runs(policy(name), [one, other]) == ({other.id if overtakes else one.id}, [])


@pytest.mark.parametrize(
    ("name", "resident", "first", "equal"),
    [
        ("priority", decoding(1, priority=1), Shown(2), Shown(2, priority=1)),
        ("srpt", decoding(1, predicted=9), Shown(2, predicted=3), Shown(2, predicted=4)),
    ],
)
def test_a_newcomer_pauses_one_behind_it_which_loses_its_memory_only_if_that_is_needed(
    name: str, resident: Shown, first: Shown, equal: Shown
) -> None:
    for budget, preempted in ((12 + first.most, []), (11 + first.most, [1])):
        found = runs(policy(name), [first], [resident], budget=budget, used=12)
        assert found == ({2}, preempted)
    assert runs(policy(name), [equal], [resident], used=12) == ({1}, [])


def test_the_clients_prediction_counts_and_without_one_what_was_learnt() -> None:
    (mode,) = [mode for mode in DYNAMIC_MODES if mode.name == "srpt, reserve"]
    world = World(mode, max_batch_size=1)
    for seed in range(8):
        world.submit([seed] * 5, 2, seed, user=1)
    world.run()  # so two tokens are likely
    told_long = world.submit([1] * 5, 40, user=1, predicted=30)
    told_short = world.submit([2] * 5, 40, user=1, predicted=9)
    untold = world.submit([3] * 5, 40, user=1)
    world.run()
    check_closed(world)
    began_s = [i.first_token_s or 0.0 for i in (untold, told_short, told_long)]
    assert began_s == sorted(began_s)


# --- levels by attained service -------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_tokens", "used", "level"),
    [
        # it joins the first level whose quantum is above its prompt
        *((n, 0, level) for n, level in ((31, 0), (32, 1), (63, 1), (64, 2), (128, 3))),
        # and sinks whenever it has used the quantum of its level: 32, 64, 128 tokens and so on
        *((4, used, level) for used, level in ((31, 0), (32, 1), (95, 1), (96, 2))),
        *((40, used, level) for used, level in ((63, 1), (64, 2), (191, 2), (192, 3))),
    ],
)
def test_the_level_of_a_request_by_its_prompt_and_by_what_it_has_used(
    prompt_tokens: int, used: int, level: int
) -> None:
    request, order = Shown(1, prompt_tokens=prompt_tokens), MLFQ()
    for _ in range(used):
        order.observe([Served(request, 1, 1)])
    assert order.group(request) == level
    order.observe([Served(Shown(1, done=True), 1, 1)])
    assert order.group(Shown(1)) == 0, "what is done is forgotten"


@pytest.mark.parametrize(
    ("tokens", "level"), [(0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (256, 3)]
)
def test_levels_of_programs_double_and_the_less_served_is_first(tokens: int, level: int) -> None:
    order, much, little = Program(), Shown(2, program=1), Shown(3, program=2)
    assert order_of(order, [much, little]) == [2, 3]
    order.observe([Served(Shown(1, program=1, done=True), tokens, 1)])  # calls count together
    assert order.group_rank((1, 1)) == level
    assert order_of(order, [much, little]) == ([3, 2] if level else [2, 3])
    order.observe([Served(Shown(4, program=2), FIRST_LEVEL << level >> 1, 1)])  # the same level
    assert order_of(order, [much, little]) == [2, 3]


# --- how newcomers are admitted -------------------------------------------------------------


def test_as_few_residents_as_newcomers_need_are_preempted_the_least_urgent_first() -> None:
    residents = [Shown(k, priority=k, computed=4, room=10) for k in range(1, 201)]
    urgent = [Shown(1000 + k, prompt_tokens=4, max_tokens=6, priority=-1) for k in range(64)]
    shown = view(urgent, residents, limit=64, max_resident=220, budget=2100, used=2000)
    plan = Pausing(ByPriority(), StallFree(1000)).plan(shown)
    assert {step.request.id for step in plan.advance} == {request.id for request in urgent}
    # places for 20 more, memory for 10 more: 54 give way
    assert sorted(request.id for request in plan.preempt) == list(range(147, 201))


PROMPT = Shown(2, prompt_tokens=500, computed=100, priority=5, room=510)  # amid its prefill
DECODE = decoding(1, priority=6)
PAUSED = replace(PROMPT, id=4, priority=7)
URGENT = [Shown(3, priority=-1)]
LONG = [Shown(k, prompt_tokens=20, max_tokens=4, priority=-1) for k in (3, 4)]


@pytest.mark.parametrize(
    ("waiting", "residents", "budget", "used", "planned"),
    [
        # a prompt does not continue before a newcomer that precedes it
        (URGENT, [DECODE, PROMPT], 1000, 522, [(1, 1), (3, 4)]),
        ([Shown(3, priority=5)], [PROMPT], 1000, 510, [(2, 20)]),
        # nor does a paused one take the row of such a prompt
        (URGENT, [PROMPT, PAUSED], 2000, 1020, [(3, 4)]),
        # none is preempted for a newcomer that the token budget leaves out
        (LONG, [DECODE, PROMPT], 546, 522, [(3, 20)]),
    ],
)
def test_a_prompt_waits_for_newcomers_before_it(
    waiting: list[Shown], residents: list[Shown], budget: int, used: int, planned: object
) -> None:
    shown = view(waiting, residents, limit=2, max_resident=8, budget=budget, used=used)
    plan = Pausing(ByPriority(), StallFree(20)).plan(shown)
    assert advanced(plan) == planned
    assert not plan.preempt


def test_of_equal_programs_the_one_that_has_waited_longest_is_first() -> None:
    order = Program()
    call, other = Shown(1, program=1), Shown(2, program=2)
    assert order_of(order, [call, other]) == [1, 2]
    # the first program stopped waiting, and its next call begins to
    assert order_of(order, [other, later := Shown(3, program=1)]) == [2, 3]
    # the second one still waits, with a further call
    assert order_of(order, [other, later, Shown(4, program=2)]) == [2, 4, 3]
