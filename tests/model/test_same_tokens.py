"""The same request gives the same tokens in every mode, whatever it is batched with.

Torch's products of another batch size may differ in the last bits, so a difference is accepted
where, and only where, the two best scores (noise included) were closer than 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inference import Inference
from generate import dynamic
from generate.modes import ModeName
from model import LoadOptions, load_model
from requested import Sampling
from runtime.executor import Executor
from runtime.sampling.sampler import Known, Sampler, drawing_of
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Policy
from tests.bare import Bare
from tests.model.peer import LogitsTap
from tests.model.served import answers, serve

NEAR_TIE = 1e-4
POLICIES: dict[ModeName, Callable[[], Policy]] = {
    "nobatch": NoBatch,
    "static": lambda: Static(max_wait_s=0.0),
    "dynamic": Orca,
}
Job = tuple[list[int], int, Sampling, int]  # with the step at which it arrives


@pytest.fixture(scope="module")
def models() -> dict[ModeName, Executor]:
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
    st.integers(0, 12),
)


def run(
    models: dict[ModeName, Executor],
    mode: ModeName,
    work: Sequence[Job],
    limit: int,
    lookahead: int = 0,
) -> list[list[int]]:
    inferences = [Inference(*job) for job in work]
    serve(models[mode], inferences, POLICIES[mode](), mode=mode, rows=limit, lookahead=lookahead)
    assert not any(inference.error for inference in inferences)
    return answers(inferences)


def is_near_tie(model: Executor, ids: list[int], sampling: Sampling) -> bool:
    """Whether the two best scores for the token after `ids` are as good as equal."""
    scores: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:

        def tap(
            _: Sampler, logits: torch.Tensor, rows: Sequence[Known], *_more: object
        ) -> torch.Tensor:
            scores.append(drawing_of(rows, logits.shape[-1], logits.device).scores(logits))
            return logits.argmax(-1)

        patch.setattr(Sampler, "draw", tap)
        bare = Bare(model, dynamic.lay_out)
        bare.advance(bare.open([ids], 1, [sampling]))
    best = scores[0][0].topk(2).values
    return float(best[0] - best[1]) < NEAR_TIE


@given(st.lists(requests, min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 1))
@settings(max_examples=12)
def test_a_request_gets_the_tokens_it_gets_alone_in_every_mode(
    models: dict[ModeName, Executor], work: list[Job], limit: int, lookahead: int
) -> None:
    alone = [run(models, "dynamic", [job], 1)[0] for job in work]
    for mode in POLICIES:
        batched = run(models, mode, work, limit, lookahead)
        for (prompt, _, sampling, _), expected, tokens in zip(work, alone, batched, strict=True):
            assert len(tokens) == len(expected)
            for i, (a, b) in enumerate(zip(expected, tokens, strict=True)):
                if a != b:
                    assert is_near_tie(models["dynamic"], [*prompt, *expected[:i]], sampling)
                    break  # from here on the two are different texts


def test_in_dynamic_mode_logits_are_those_of_running_alone_to_the_last_bit(
    models: dict[ModeName, Executor],
) -> None:
    if not models["dynamic"].info.batch_invariant:
        pytest.skip("oneDNN or torch computes the linear layers here")
    work = [
        (list(range(n, 3 * n)), 8, Sampling(seed=n, temperature=n % 2), n) for n in range(1, 40, 3)
    ]
    with pytest.MonkeyPatch.context() as patch:
        alone = LogitsTap(patch)
        for job in work:
            run(models, "dynamic", [job], 1)
    with pytest.MonkeyPatch.context() as patch:
        together = LogitsTap(patch)
        run(models, "dynamic", work, 8)
    assert len(alone.after) == len(together.after) == 8 * len(work)
    for text, logits in alone.after.items():
        assert torch.equal(together.after[text], logits)
