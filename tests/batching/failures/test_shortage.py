"""What a shortage of memory, and a preemption that it forces, may and may not do to a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest

from engine.blocks import Ledger
from engine.inference import Inference
from requested import Sampling
from scheduling.contract import PolicyError, check_plan, check_retired
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from seams import Advance, Plan, Policy, Request, Served, View
from tests.batching.modes import MODES
from tests.batching.virtual import World, check_closed


def world_of(policy: Policy, budget: int = 4096, growth_tokens: int | None = None) -> World:
    ledger = partial(Ledger, growth_tokens=growth_tokens)
    mode = replace(MODES[3], policy=lambda _: policy, ledger=ledger)
    return World(mode, budget=budget)


class Forgetful(Orca):
    """Admits without asking whether there is memory."""

    def plan(self, view: View) -> Plan:
        chosen = [*view.resident, *view.waiting]
        return Plan([Advance(r, r.known - r.computed) for r in chosen])


def test_a_policy_that_forgets_the_memory_is_told_so() -> None:
    world = world_of(Forgetful(), budget=50)
    requests = [world.submit([seed, 1], 18, seed) for seed in range(3)]
    told = r"admits 3 requests; the 50 blocks .* hold 2 of them \(ask memory.fit\)"
    world.manager.step(world.mode.lay_out, lambda: world.now_s)
    for inference in requests:
        assert inference.end == "failed"
        assert re.search(told, inference.error or "")


class PreemptsTheDone(Orca):
    answers: Literal["own", "batch"] = "batch"

    def plan(self, view: View) -> Plan:
        done = [request for request in view.resident if request.done]
        rest = [r for r in (*view.resident, *view.waiting) if not r.done]
        return Plan([Advance(r, r.known - r.computed) for r in rest], preempt=done)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return resident if all(request.done for request in resident) else ()


def test_a_request_that_is_done_when_its_place_is_taken_is_answered() -> None:
    world = world_of(PreemptsTheDone())
    requests = [world.submit([i], 2 + 3 * i, i) for i in range(2)]
    world.run()
    check_closed(world)
    assert requests[0].record is not None
    assert requests[0].record.num_preemptions == 0


def test_prompt_logprobs_are_told_once_however_often_a_request_is_preempted() -> None:
    world = world_of(Orca(), budget=48, growth_tokens=4)
    requests = [world.submit([i, 2, 3, 4, 5, 6], 24, seed=1) for i in range(3)]
    for request in requests:
        request.sampling = replace(request.sampling, prompt_logprobs=0)
    world.run()
    check_closed(world)
    assert any(request.num_preemptions for request in requests)
    for request in requests:
        assert [entry.token for entry in request.prompt_logprobs] == [2, 3, 4, 5, 6]


def arrived(id: int, max_tokens: int) -> Inference:
    inference = Inference([1], max_tokens, Sampling(), 0.0)
    inference.id = id
    return inference


def test_a_request_that_was_planned_and_found_no_room_keeps_its_age() -> None:
    policy = ShortestFirst(max_bypass=2)
    old = arrived(0, 500)
    for n in (1, 2):
        young = arrived(n, 1)
        plan = policy.plan(View(0.0, [old, young], [], 1, Ledger(9999), 0, 1))
        assert [step.request for step in plan.advance] == [young]
        policy.observe([Served(young, 1, 1)])
    for n in (3, 4):  # it would be its turn, but growth needed the memory
        young = arrived(n, 1)
        plan = policy.plan(View(0.0, [old, young], [], 1, Ledger(9999), 0, 1))
        assert [step.request for step in plan.advance] == [old]


def test_a_policy_that_names_a_request_twice_is_told_so() -> None:
    request = arrived(1, 3)
    view = View(0.0, [], [request], 4, Ledger(99), 0, 4)
    with pytest.raises(PolicyError, match="preempts a request twice"):
        check_plan(Plan([Advance(request, 1)], preempt=[request, request]), view)
    request.end = "length"
    with pytest.raises(PolicyError, match="retires a request twice"):
        check_retired([request, request], [request])
