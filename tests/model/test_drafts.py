"""On the real model: what is computed and drawn behind drafts is, to the last bit, what is computed
and drawn without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from generate.dynamic import lay_out
from model import LoadOptions, load_model
from requested import Sampling
from runtime.iteration import KnownSequence
from runtime.sampling.sampler import Known, Sampler
from seams import Drafts, Step
from tests.bare import Bare

PROMPTS = [[7, 8, 9, 10, 11] * 5, list(range(50, 90)), [3]]
FURTHER = 24


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def model(request: pytest.FixtureRequest) -> Any:
    model = load_model(LoadOptions("dynamic", "embedded", "cpu", request.param, 0, 8, speculate=8))
    if not model.info.batch_invariant:
        pytest.skip("no variant of the linear layers is batch invariant here")
    return model


class Tap:
    """The logits after each text that a model saw."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: dict[tuple[int, ...], torch.Tensor] = {}
        real = Sampler.draw

        def draw(
            sampler: Sampler, logits: torch.Tensor, rows: Sequence[Known], *more: Any
        ) -> torch.Tensor:
            for scores, row in zip(logits, rows, strict=True):
                self.seen[tuple(row.ids)] = scores.clone()
            return real(sampler, logits, rows, *more)

        patch.setattr(Sampler, "draw", draw)


def generated(model: Any, samplings: Sequence[Sampling]) -> list[list[int]]:
    """The prompts and what follows them, without drafts."""
    bare = Bare(model, lay_out)
    sequences = bare.open(PROMPTS, FURTHER, samplings)
    for _ in range(FURTHER):
        bare.advance(sequences)
    return [sequence.ids for sequence in sequences]


def speculated(
    model: Any,
    samplings: Sequence[Sampling],
    k: int,
    truth: Sequence[Sequence[int]],
    patch: pytest.MonkeyPatch,
) -> tuple[list[list[int]], list[int], list[list[Any]]]:
    """The same with k drafts a row: some that will be drawn, then a wrong one, in turn. Also how
    many tokens each row received at once, and the logprobs."""
    right = iter(range(10_000))

    def draft(row: KnownSequence, most: int) -> list[int]:
        text = next(text for text in truth if list(text[: len(row.ids)]) == row.ids)
        ahead = list(text[len(row.ids) : len(row.ids) + most])
        kept = next(right) % (k + 1)
        return ahead[:kept] + [(token + 1) % 100 for token in ahead[kept:]]

    patch.setattr(KnownSequence, "draft", draft)
    bare = Bare(model, lay_out)
    sequences = bare.open(PROMPTS, FURTHER + k, samplings)
    counts, scores = list[int](), [list[Any]() for _ in PROMPTS]
    while True:
        rows = [s for s, text in zip(sequences, truth, strict=True) if len(s.ids) < len(text)]
        if not rows:
            return [sequence.ids for sequence in sequences], counts, scores
        drafts = [
            min(k, len(truth[s.id - sequences[0].id]) - len(s.ids) - 1) if s.computed else 0
            for s in rows
        ]
        outcome = bare.advance(rows, drafts=drafts)
        for i, (row, tokens) in enumerate(zip(rows, outcome.tokens, strict=True)):
            counts.append(len(tokens))
            scores[row.id - sequences[0].id] += outcome.logprobs.get(i, ())
        assert outcome.drafts == {
            i: Drafts(count, len(outcome.tokens[i]) - 1) for i, count in enumerate(drafts) if count
        }


SAMPLINGS = {
    "greedy": Sampling(temperature=0, logprobs=2),
    "noise": Sampling(seed=5, temperature=1.0, top_p=0.9),
    "penalties": Sampling(
        seed=6,
        temperature=0.8,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        min_tokens=12,
        end_ids=(13, 198, 290),
        logprobs=1,
    ),
}


@pytest.mark.parametrize("k", range(1, 9))
def test_logits_behind_drafts_are_those_of_one_token_at_a_time_to_the_last_bit(
    model: Any, k: int
) -> None:
    samplings = [SAMPLINGS["greedy"], SAMPLINGS["noise"], SAMPLINGS["greedy"]]
    with pytest.MonkeyPatch.context() as patch:
        plain = Tap(patch)
        truth = generated(model, samplings)
    with pytest.MonkeyPatch.context() as patch:
        tap = Tap(patch)
        found, counts, _ = speculated(model, samplings, k, truth, patch)
    assert found == truth
    assert max(counts) == k + 1, "all drafts of a row are accepted at least once"
    assert 1 in counts
    for text, logits in plain.seen.items():
        assert torch.equal(tap.seen[text], logits)


@pytest.mark.parametrize("of", SAMPLINGS)
def test_tokens_and_logprobs_are_the_same_under_every_sampling(model: Any, of: str) -> None:
    samplings = [SAMPLINGS[of]] * len(PROMPTS)
    bare = Bare(model, lay_out)
    sequences = bare.open(PROMPTS, FURTHER, samplings)
    expected: list[list[Any]] = [[] for _ in PROMPTS]
    for _ in range(FURTHER):
        for i, words in bare.advance(sequences).logprobs.items():
            expected[i] += words
    truth = [sequence.ids for sequence in sequences]
    with pytest.MonkeyPatch.context() as patch:
        found, _, scores = speculated(model, samplings, 3, truth, patch)
    assert found == truth
    assert scores == expected


def test_only_some_rows_of_an_iteration_may_have_drafts_and_logprobs(model: Any) -> None:
    samplings = [SAMPLINGS["greedy"], SAMPLINGS["noise"], SAMPLINGS["penalties"]]
    truth = generated(model, samplings)
    bare = Bare(model, lay_out)
    sequences = bare.open(PROMPTS, FURTHER, samplings)
    bare.advance(sequences)
    while len(sequences[0].ids) < len(truth[0]):
        left = len(truth[0]) - len(sequences[0].ids)
        bare.advance(sequences, drafts=[min(4, left - 1), 0, 0])
    for sequence, text in zip(sequences, truth, strict=True):
        assert sequence.ids == text[: len(sequence.ids)]


def test_an_iteration_without_room_for_drafts_asks_for_none(model: Any) -> None:
    """A model drafts only where it is asked to."""
    bare = Bare(model, lay_out)
    (sequence,) = bare.open([[1, 2, 3, 1, 2, 3, 1, 2]], 4)
    outcome = bare.advance([sequence])
    assert len(outcome.tokens[0]) == 1
    step = Step(sequence.id, sequence.computed, 1, True, ())
    assert step.drafts == 0
    assert not outcome.drafts
