"""On the real model: memory that grows, and requests that are preempted and computed again, give
the tokens that a reservation gives, or other ones where the two best scores were as good as equal.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batching import BatchingManager
from benchmarks.bare import Tally
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from generate import dynamic
from model import LoadOptions, load_model
from requested import Sampling
from runtime.executor import Executor
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.tgi import TGI
from seams import Policy
from tests.model.test_same_tokens import is_near_tie, requests

POLICIES = [Orca, lambda: StallFree(token_budget=24), lambda: TGI(max_batch_prefill_tokens=64)]


@pytest.fixture(scope="module")
def model() -> Executor:
    return load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, max_batch_size=8))


def run(model: Executor, policy: Policy, work, ledger: Ledger) -> list[Inference]:  # type: ignore[no-untyped-def]
    manager = BatchingManager(policy, Tally(), max_batch_size=6, max_waiting=100)
    manager.serve(model, ledger)
    inferences = [Inference(prompt, n, sampling, 0.0) for prompt, n, sampling, _ in work]
    for inference in inferences:
        manager.enqueue(inference)
    while not isinstance(manager.step(dynamic.lay_out, lambda: 0.0), Wait):
        pass
    assert ledger.used == 0
    return inferences


@given(work=st.lists(requests, min_size=3, max_size=6), policy=st.sampled_from(POLICIES))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tiny_budget_with_optimistic_admission_gives_the_same_tokens(model, work, policy) -> None:  # type: ignore[no-untyped-def]
    size = model.block_tokens
    alone = [run(model, Orca(), [job], Ledger(model.num_blocks, size))[0] for job in work]
    budget = max(-(-(len(prompt) + n) // size) for prompt, n, *_ in work) + 1
    squeezed = run(model, policy(), work, Ledger(budget, size, growth_tokens=2))
    for expected, inference in zip(alone, squeezed, strict=True):
        assert inference.end == "length", inference.error
        for position, (a, b) in enumerate(zip(expected.ids, inference.ids, strict=True)):
            if a != b:
                assert is_near_tie(model, expected.ids[:position], expected.sampling)
                break  # from here on the two are different texts


def test_the_squeeze_of_the_test_above_does_preempt(model: Executor) -> None:
    work = [([n + 1] * 8, 24, Sampling(), 0.0) for n in range(4)]
    done = run(model, Orca(), work, Ledger(4, model.block_tokens, growth_tokens=2))
    assert sum(inference.num_preemptions for inference in done) > 0
