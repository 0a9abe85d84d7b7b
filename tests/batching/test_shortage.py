"""What a shortage of memory, and a preemption that it forces, may and may not do to a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from batching import BatchingManager
from benchmarks.common import Tally
from generate import dynamic
from inference import Inference
from scheduling.contract import PolicyError, check_plan, check_retired
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from seams import Advance, Plan, Policy, Request, Sampling, View
from tests.hash_model import HashModel, reference, virtual_duration_s


def manager_of(model: HashModel, policy: Policy, **limits: int) -> BatchingManager:
    manager = BatchingManager(policy, Tally(), max_batch_size=8, max_waiting=99, **limits)
    manager.model = model
    return manager


def run(manager: BatchingManager, inferences: Sequence[Inference]) -> None:
    for inference in inferences:
        manager.submit(inference)
    now_s: float | None = 0.0
    for _ in range(1000):
        now_s = manager.step(now_s or 0.0, dynamic.generate)
        if now_s is None:
            return
    raise AssertionError("the requests do not end")


class NewcomersAlone(Orca):
    """Prefills newcomers in an iteration of their own, whether or not there is memory for them."""

    def plan(self, view: View) -> Plan:
        if view.waiting and len(view.resident) < view.max_batch_size:
            request = view.waiting[0]
            return Plan([Advance(request, request.known - request.computed)])
        return Plan([Advance(r, r.known - r.computed) for r in view.resident])


def test_a_newcomer_without_memory_waits_for_those_who_hold_it() -> None:
    model = HashModel(budget=30, duration_s=virtual_duration_s)
    requests = [Inference([i, 1], 18, Sampling(seed=i), 0.0) for i in range(3)]
    run(manager_of(model, NewcomersAlone()), requests)
    assert [request.end for request in requests] == ["length"] * 3
    for i, request in enumerate(requests):
        assert request.ids[2:] == reference([i, 1], 18, seed=i)


class PreemptsTheDone(Orca):
    answers: Literal["own", "batch"] = "batch"

    def plan(self, view: View) -> Plan:
        done = [request for request in view.resident if request.done]
        rest = [r for r in (*view.resident, *view.waiting) if not r.done]
        return Plan([Advance(r, r.known - r.computed) for r in rest], preempt=done)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return resident if all(request.done for request in resident) else ()


def test_a_request_that_is_done_when_its_place_is_taken_is_answered() -> None:
    model = HashModel(duration_s=virtual_duration_s)
    requests = [Inference([i], 2 + 3 * i, Sampling(seed=i), 0.0) for i in range(2)]
    run(manager_of(model, PreemptsTheDone()), requests)
    assert all(request.event.is_set() for request in requests)
    assert requests[0].record is not None
    assert requests[0].record.preemptions == 0


def test_prompt_logprobs_are_told_once_however_often_a_request_is_preempted() -> None:
    model = HashModel(budget=48, duration_s=virtual_duration_s)
    wanted = Sampling(seed=1, prompt_logprobs=0)
    requests = [Inference([i, 2, 3, 4, 5, 6], 24, wanted, 0.0) for i in range(3)]
    run(manager_of(model, Orca(), growth_tokens=4), requests)
    assert any(request.preemptions for request in requests)
    for i, request in enumerate(requests):
        assert [entry.token for entry in request.prompt_logprobs] == [2, 3, 4, 5, 6]
        assert request.ids[6:] == reference([i, 2, 3, 4, 5, 6], 24, seed=1)


def test_a_request_that_was_planned_and_found_no_room_keeps_its_age() -> None:
    policy, model = ShortestFirst(max_bypass=2), HashModel()
    old = Inference([1], 500, Sampling(), 0.0)
    for _ in range(2):
        young = Inference([1], 1, Sampling(), 0.0)
        plan = policy.plan(View(0.0, [old, young], [], 1, model.memory, 0))
        assert [step.request for step in plan.advance] == [young]
    for _ in range(2):  # now it is its turn, and it is not admitted: growth needed the room
        young = Inference([1], 1, Sampling(), 0.0)
        plan = policy.plan(View(0.0, [old, young], [], 1, model.memory, 0))
        assert [step.request for step in plan.advance] == [old]


def test_a_policy_that_names_a_request_twice_is_told_so() -> None:
    request = Inference([1], 3, Sampling(), 0.0)
    view = View(0.0, [], [request], 4, HashModel().memory, 0)
    with pytest.raises(PolicyError, match="preempts a request twice"):
        check_plan(Plan(preempt=[request, request], wake_s=1.0), view)
    request.end = "length"
    with pytest.raises(PolicyError, match="retires a request twice"):
        check_retired([request, request], [request])
