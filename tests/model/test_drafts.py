"""On the real model: logits behind drafts are, to the last bit, those of one token at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from generate.dynamic import lay_out
from model import LoadOptions, load_model
from requested import Sampling
from seams import Drafts
from tests.bare import Bare
from tests.model.peer import LogitsTap
from tests.recalling import recall

PROMPTS = [[7, 8, 9, 10, 11] * 5, list(range(50, 90)), [3]]
SAMPLINGS = [Sampling(temperature=0), Sampling(seed=5, top_p=0.9), Sampling(seed=6)]
FURTHER = 24


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def model(request: pytest.FixtureRequest) -> Any:
    model = load_model(LoadOptions("dynamic", "embedded", "cpu", request.param, 0, 8, speculate=8))
    if not model.info.batch_invariant:
        pytest.skip("no variant of the linear layers is batch invariant here")
    return model


def generated(
    model: Any, k: int, patch: pytest.MonkeyPatch
) -> tuple[list[list[int]], LogitsTap, int]:
    """The texts, all logits on the way, and the most tokens that a row received at once, with k
    drafts a row behind its first token."""
    tap, most = LogitsTap(patch), 0
    bare = Bare(model, lay_out)
    sequences = bare.open(PROMPTS, FURTHER, SAMPLINGS)
    ends = [len(ids) + FURTHER for ids in PROMPTS]
    while True:
        rows = [
            (s, end - len(s.ids))
            for s, end in zip(sequences, ends, strict=True)
            if len(s.ids) < end
        ]
        if not rows:
            return [sequence.ids for sequence in sequences], tap, most
        drafts = [min(k, left - 1) if s.computed else 0 for s, left in rows]
        outcome = bare.advance([s for s, _ in rows], drafts=drafts)
        most = max(most, *map(len, outcome.tokens))
        assert outcome.drafts == {
            i: Drafts(count, len(outcome.tokens[i]) - 1) for i, count in enumerate(drafts) if count
        }


@pytest.mark.parametrize("k", [1, 4, 8])
def test_logits_behind_drafts_are_those_of_one_token_at_a_time_to_the_last_bit(
    model: Any, k: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        truth, plain, _ = generated(model, 0, patch)
    with pytest.MonkeyPatch.context() as patch:
        recall(truth, patch, model.vocab_size)
        found, tap, most = generated(model, k, patch)
    assert found == truth
    assert most == k + 1, "all drafts of a row are accepted at least once"
    for text, logits in plain.after.items():
        assert torch.equal(tap.after[text], logits)
