"""How composed policies admit: residents give way as far as newcomers need, found in few trials."""

from __future__ import annotations

from dataclasses import replace

from scheduling.composed import Order, Pausing
from scheduling.policies.orders.priority import ByPriority
from scheduling.policies.stall_free import StallFree
from seams import Request
from tests.scheduling.shown import Counted, Shown, view


def test_as_few_residents_as_newcomers_need_are_preempted_the_least_urgent_first() -> None:
    residents = [Shown(k, priority=k, computed=4, room=10) for k in range(1, 201)]
    urgent = [Shown(1000 + k, prompt_tokens=4, max_tokens=6, priority=-1) for k in range(64)]
    shown = view(urgent, residents, limit=64, max_resident=220, budget=2100, used=2000)
    memory = Counted(shown.memory, [])
    plan = Pausing(ByPriority(), StallFree(1000)).plan(replace(shown, memory=memory))
    assert {step.request.id for step in plan.advance} == {request.id for request in urgent}
    # places for 20 more, memory for 10 more: 54 give way
    assert sorted(request.id for request in plan.preempt) == list(range(147, 201))
    assert memory.asked <= 15


PROMPT = Shown(2, prompt_tokens=500, computed=100, priority=5, room=510)  # amid its prefill
DECODE = Shown(1, computed=4, generated=1, priority=6, room=12)


def test_a_prompt_does_not_continue_before_a_newcomer_that_precedes_it() -> None:
    policy = Pausing(ByPriority(), StallFree(20))
    plan = policy.plan(view([Shown(3, priority=-1)], [DECODE, PROMPT], limit=2, max_resident=3))
    assert [(step.request.id, step.num_tokens) for step in plan.advance] == [(1, 1), (3, 4)]
    plan = policy.plan(view([Shown(3, priority=5)], [PROMPT], limit=2, max_resident=3))
    assert [(step.request.id, step.num_tokens) for step in plan.advance] == [(2, 20)]


def test_no_paused_prompt_takes_the_row_of_a_prompt_that_waits_for_a_newcomer() -> None:
    paused = replace(PROMPT, id=4, priority=7)
    waiting, residents = [Shown(3, priority=-1)], [PROMPT, paused]
    shown = view(waiting, residents, limit=2, max_resident=3, budget=2000, used=1020)
    plan = Pausing(ByPriority(), StallFree(20)).plan(shown)
    assert [(step.request.id, step.num_tokens) for step in plan.advance] == [(3, 4)]


def test_none_is_preempted_for_a_newcomer_that_the_token_budget_leaves_out() -> None:
    urgent = [Shown(k, prompt_tokens=20, max_tokens=4, priority=-1) for k in (3, 4)]
    shown = view(urgent, [DECODE, PROMPT], limit=2, max_resident=8, budget=546, used=522)
    plan = Pausing(ByPriority(), StallFree(20)).plan(shown)
    assert [(step.request.id, step.num_tokens) for step in plan.advance] == [(3, 20)]
    assert not plan.preempt


class Aged(Order):
    """Every iteration goes by arrival."""

    oldest_every = 1

    def rank(self, request: Request) -> int:
        return -request.id


def test_an_iteration_by_arrival_looks_past_the_preempted_ones() -> None:
    """They stand first among the waiting, whatever their age."""
    preempted = [Shown(k, num_preemptions=1) for k in (5, 6, 7)]
    plan = Pausing(Aged(), StallFree(20)).plan(view([*preempted, Shown(2), Shown(8)], limit=2))
    assert [step.request.id for step in plan.advance] == [2, 5]


def test_in_an_iteration_by_arrival_younger_residents_give_their_memory() -> None:
    residents = [Shown(k, computed=4, generated=1, room=12) for k in (1, 3, 4)]
    shown = view([Shown(2, max_tokens=16)], residents, limit=4, budget=36, used=36)
    plan = Pausing(Aged(), StallFree(20)).plan(shown)
    assert {step.request.id for step in plan.advance} == {1, 2}
    assert {request.id for request in plan.preempt} == {3, 4}
