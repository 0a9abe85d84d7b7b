"""The same request gives the same tokens in every mode, whatever it is batched with.

Torch's products of another batch size may differ in the last bits, so a difference is accepted
where, and only where, the two best scores (noise included) were closer than 1e-4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batching import BatchingManager, Generate
from benchmarks.common import Tally
from generate import dynamic, nobatch, static
from gpt import sampling as sampling_module
from gpt.linear import runs_in_panels
from gpt.sampling import perturbed
from inference import Inference
from model import LoadOptions, load_model
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Draw, Need, Policy, Row, Sampling

NEAR_TIE = 1e-4
MODES: dict[str, tuple[Callable[[], Policy], Generate]] = {
    "nobatch": (NoBatch, nobatch.generate),
    "static": (lambda: Static(max_wait_s=0.01), static.generate),
    "dynamic": (Orca, dynamic.generate),
}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {
        mode: load_model(LoadOptions(mode, "embedded", "cpu", "float32", 0, max_batch_size=8))
        for mode in MODES
    }


samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.0]),
    top_k=st.sampled_from([None, 20]),
    top_p=st.sampled_from([1.0, 0.9]),
)
requests = st.tuples(
    st.lists(st.integers(0, 4000), min_size=1, max_size=40),
    st.integers(1, 12),
    samplings,
    st.floats(0, 0.3),
)


def run(
    model: Any, policy: Policy, generate, work, limit: int
) -> list[list[int]]:  # fmt: skip
    """The requests' tokens, arriving at their times, under a virtual clock."""
    manager = BatchingManager(policy, Tally(), max_batch_size=limit, max_waiting=100)
    manager.model = model
    inferences = [
        Inference(prompt, tokens, sampling, arrival) for prompt, tokens, sampling, arrival in work
    ]
    pending = sorted(inferences, key=lambda inference: inference.arrival_s)
    now = 0.0
    for _ in itertools.count():
        while pending and pending[0].arrival_s <= now:
            manager.submit(pending.pop(0))
        wake = manager.step(now, generate)
        if wake is None and not pending:
            break
        now = max(now, pending[0].arrival_s if wake is None else wake)
    assert model.memory.used == 0
    return [inference.ids[inference.prompt_tokens :] for inference in inferences]


def is_near_tie(model: Any, ids: list[int], sampling: Sampling) -> bool:
    """Whether the two best scores for the token after `ids` are as good as equal."""
    scores: list[torch.Tensor] = []
    (kv,) = model.allocate([Need(len(ids), 1)])
    with pytest.MonkeyPatch.context() as patch:

        def tap(logits: torch.Tensor, *_: object) -> torch.Tensor:
            scores.append(logits)
            return logits.argmax(-1)

        patch.setattr("model.sample", tap)
        dynamic.generate(model, [Row(kv, 0, ids, Draw(sampling, ids, len(ids)))])
    logits = scores[0]
    if sampling.temperature > 0:
        logits = perturbed(logits, [Draw(sampling, ids, len(ids))])
    best = logits[0].topk(2).values
    return float(best[0] - best[1]) < NEAR_TIE


@given(st.lists(requests, min_size=1, max_size=6), st.integers(1, 5))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_request_gets_the_tokens_it_gets_alone_in_every_mode(models, work, limit):
    alone = [run(models["dynamic"], Orca(), dynamic.generate, [job], 1)[0] for job in work]
    for mode, (make_policy, generate) in MODES.items():
        batched = run(models[mode], make_policy(), generate, work, limit)
        for (prompt, _, sampling, _), expected, tokens in zip(work, alone, batched, strict=True):
            assert len(tokens) == len(expected)
            for i, (a, b) in enumerate(zip(expected, tokens, strict=True)):
                if a != b:
                    assert is_near_tie(models["dynamic"], [*prompt, *expected[:i]], sampling)
                    break  # from here on the two are different texts


def test_a_preempted_request_continues_with_the_same_tokens(models) -> None:
    model = models["dynamic"]
    prompt, sampling = [5, 99, 1000, 7], Sampling(seed=3)
    expected = run(model, Orca(), dynamic.generate, [(prompt, 16, sampling, 0.0)], 1)[0]
    for known in range(1, 16):
        ids = prompt + expected[:known]
        (kv,) = model.allocate([Need(len(ids), 1)])
        (token,) = dynamic.generate(model, [Row(kv, 0, ids, Draw(sampling, ids, len(ids)))]).tokens
        assert token == expected[known] or is_near_tie(model, ids, sampling)


def all_logits(model: Any, work, limit: int) -> dict[tuple[int, ...], torch.Tensor]:  # type: ignore[no-untyped-def]
    """What the model said after each text that it saw on the way."""
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    real = sampling_module.sample

    def tap(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        for row, draw in zip(logits, draws, strict=True):
            seen[tuple(draw.known)] = row.clone()
        return real(logits, draws)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.sample", tap)
        run(model, Orca(), dynamic.generate, work, limit)
    return seen


@pytest.mark.skipif(
    not runs_in_panels(torch.nn.Linear(2, 2)), reason="this machine has no product kernel of ours"
)
def test_in_dynamic_mode_logits_are_those_of_running_alone_to_the_last_bit(models) -> None:
    work = [
        (list(range(n, 3 * n)), 8, Sampling(seed=n, temperature=n % 2), 0.002 * n)
        for n in range(1, 40, 3)
    ]
    alone = [all_logits(models["dynamic"], [job], 1) for job in work]
    together = all_logits(models["dynamic"], work, 8)
    assert len(together) == sum(map(len, alone)) == 8 * len(work)
    for of_one in alone:
        for text, logits in of_one.items():
            assert torch.equal(together[text], logits)
