"""On the real model: memory that grows, and requests that are preempted and computed again, give
the tokens that a reservation gives, or other ones where the two best scores were as good as equal.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batching import BatchingManager
from benchmarks.common import Tally
from generate import dynamic
from inference import Inference
from model import LoadOptions, ServerModel, load_model
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.tgi import TGI
from seams import Need, Policy, Sampling
from tests.model.test_same_tokens import is_near_tie, requests

POLICIES = [Orca, lambda: StallFree(token_budget=24), lambda: TGI(max_batch_prefill_tokens=64)]


@pytest.fixture(scope="module")
def model() -> ServerModel:
    return load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, max_batch_size=8))


def run(model: ServerModel, policy: Policy, work, growth_tokens: int | None) -> list[Inference]:  # type: ignore[no-untyped-def]
    manager = BatchingManager(
        policy, Tally(), max_batch_size=6, max_waiting=100, growth_tokens=growth_tokens
    )
    manager.model = model
    inferences = [Inference(prompt, n, sampling, 0.0) for prompt, n, sampling, _ in work]
    for inference in inferences:
        manager.submit(inference)
    now_s: float | None = 0.0
    while now_s is not None:
        now_s = manager.step(now_s, dynamic.generate)
    assert model.memory.used == 0
    return inferences


@given(work=st.lists(requests, min_size=3, max_size=6), policy=st.sampled_from(POLICIES))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tiny_budget_with_optimistic_admission_gives_the_same_tokens(model, work, policy) -> None:  # type: ignore[no-untyped-def]
    plenty = model.memory.budget
    alone = [run(model, Orca(), [job], None)[0] for job in work]
    model.memory.budget = max(len(prompt) + n for prompt, n, *_ in work) + 8
    try:
        squeezed = run(model, policy(), work, 2)
    finally:
        model.memory.budget = plenty
    for expected, inference in zip(alone, squeezed, strict=True):
        assert inference.end == "length", inference.error
        for position, (a, b) in enumerate(zip(expected.ids, inference.ids, strict=True)):
            if a != b:
                assert is_near_tie(model, expected.ids[:position], expected.sampling)
                break  # from here on the two are different texts


def test_the_squeeze_of_the_test_above_does_preempt(model: ServerModel) -> None:
    plenty = model.memory.budget
    model.memory.budget = 40
    try:
        done = run(model, Orca(), [([n + 1] * 8, 24, Sampling(), 0.0) for n in range(4)], 2)
    finally:
        model.memory.budget = plenty
    assert sum(inference.preemptions for inference in done) > 0


def test_a_handle_that_grows_keeps_what_it_holds_and_costs_what_it_gained(
    model: ServerModel,
) -> None:
    (kv,) = model.allocate([Need(5, 1)])
    with torch.inference_mode():
        kv.keys.normal_()  # type: ignore[attr-defined]
    keys = kv.keys.clone()  # type: ignore[attr-defined]
    model.grow(kv, 11)  # type: ignore[attr-defined]
    assert model.memory.used == 11
    assert kv.keys.shape[2] == kv.values.shape[2] == 11  # type: ignore[attr-defined]
    assert (kv.keys[:, :, :6] == keys).all()  # type: ignore[attr-defined]
    del kv
    assert model.memory.used == 0
