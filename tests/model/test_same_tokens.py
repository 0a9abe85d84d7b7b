"""The same request gives the same tokens in every mode, whatever it is batched with.

Torch's products of another batch size may differ in the last bits, so a difference is accepted
where, and only where, the two best scores (noise included) were closer than 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batching import BatchingManager
from benchmarks.bare import Tally
from engine.inference import Inference
from engine.iteration import Wait
from generate import dynamic
from generate.modes import MODES, ModeName, make_ledger
from model import LoadOptions, load_model
from requested import Sampling
from runtime.sampling.sampler import Known, Sampler, drawing_of
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Outcome, Policy
from tests.bare import Bare

NEAR_TIE = 1e-4
POLICIES: dict[ModeName, Callable[[], Policy]] = {
    "nobatch": NoBatch,
    "static": lambda: Static(max_wait_s=0.01),
    "dynamic": Orca,
}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {
        mode: load_model(LoadOptions(mode, "embedded", "cpu", "float32", 0, max_batch_size=8))
        for mode in POLICIES
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
    model: Any,
    mode: ModeName,
    work: Sequence[tuple[list[int], int, Sampling, float]],
    limit: int,
    lookahead: int = 0,
) -> list[list[int]]:
    """The requests' tokens, arriving at their times, under a virtual clock."""
    manager = BatchingManager(POLICIES[mode](), Tally(), max_batch_size=limit, max_waiting=100)
    manager.serve(model, make_ledger(mode, model))
    inferences = [
        Inference(prompt, tokens, sampling, arrival) for prompt, tokens, sampling, arrival in work
    ]
    pending = sorted(inferences, key=lambda inference: inference.arrival_s)
    now_s = 0.0
    while True:
        while pending and pending[0].arrival_s <= now_s:
            manager.enqueue(pending.pop(0))
        begun = manager.begin(now_s, MODES[mode].lay_out)
        waits = isinstance(begun, Wait)
        if manager.in_flight and (waits or len(manager.in_flight) > lookahead):
            landed = manager.in_flight[0].outcome()
            assert isinstance(landed, Outcome), landed
            now_s += landed.duration_s
            manager.finish(now_s, landed)
        elif isinstance(begun, Wait):
            now_s = min(begun.until_s, pending[0].arrival_s if pending else math.inf)
            if now_s == math.inf:
                break
    assert manager.memory.used == 0
    assert not any(inference.error for inference in inferences)
    return [inference.ids[inference.prompt_tokens :] for inference in inferences]


def next_token(model: Any, ids: Sequence[int], sampling: Sampling) -> list[int]:
    """What the model draws after `ids` if it sees them for the first time."""
    bare = Bare(model, dynamic.lay_out)
    (sequence,) = bare.open([ids], 1, [sampling])
    (tokens,) = bare.advance([sequence]).tokens
    return list(tokens)


def is_near_tie(model: Any, ids: list[int], sampling: Sampling) -> bool:
    """Whether the two best scores for the token after `ids` are as good as equal."""
    scores: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:

        def tap(
            _: Sampler, logits: torch.Tensor, rows: Sequence[Known], *_more: object
        ) -> torch.Tensor:
            scores.append(drawing_of(rows, logits.shape[-1], logits.device).scores(logits))
            return logits.argmax(-1)

        patch.setattr(Sampler, "draw", tap)
        next_token(model, ids, sampling)
    best = scores[0][0].topk(2).values
    return float(best[0] - best[1]) < NEAR_TIE


@given(st.lists(requests, min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 1))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_request_gets_the_tokens_it_gets_alone_in_every_mode(models, work, limit, lookahead):
    alone = [run(models["dynamic"], "dynamic", [job], 1)[0] for job in work]
    for mode in POLICIES:
        batched = run(models[mode], mode, work, limit, lookahead)
        for (prompt, _, sampling, _), expected, tokens in zip(work, alone, batched, strict=True):
            assert len(tokens) == len(expected)
            for i, (a, b) in enumerate(zip(expected, tokens, strict=True)):
                if a != b:
                    assert is_near_tie(models["dynamic"], [*prompt, *expected[:i]], sampling)
                    break  # from here on the two are different texts


def test_a_preempted_request_continues_with_the_same_tokens(models) -> None:
    model = models["dynamic"]
    prompt, sampling = [5, 99, 1000, 7], Sampling(seed=3)
    (expected,) = run(model, "dynamic", [(prompt, 16, sampling, 0.0)], 1)
    for known in range(1, 16):
        ids = prompt + expected[:known]
        assert next_token(model, ids, sampling) == [expected[known]] or is_near_tie(
            model, ids, sampling
        )


def all_logits(model: Any, work, limit: int) -> dict[tuple[int, ...], torch.Tensor]:  # type: ignore[no-untyped-def]
    """What the model said after each text that it saw on the way."""
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    real = Sampler.draw

    def tap(
        sampler: Sampler, logits: torch.Tensor, rows: Sequence[Known], *_more: object
    ) -> torch.Tensor:
        for scores, row in zip(logits, rows, strict=True):
            seen[tuple(row.ids)] = scores.clone()
        return real(sampler, logits, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "draw", tap)
        run(model, "dynamic", work, limit)
    return seen


def test_in_dynamic_mode_logits_are_those_of_running_alone_to_the_last_bit(models) -> None:
    if not models["dynamic"].info.batch_invariant:
        pytest.skip("oneDNN or torch computes the linear layers here")
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
