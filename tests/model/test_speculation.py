"""On the real model and the engine: the tokens with drafts are those without, whatever is sampled,
preempted, shared or ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from model import LoadOptions, load_model
from requested import Sampling
from scheduling.policies.stall_free import StallFree
from tests.examples import examples
from tests.model.drafted import serve
from tests.model.test_same_tokens import is_near_tie

MOST = 6


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, 8, speculate=MOST))


few = st.sampled_from([11, 12, 13, 290, 198, 1000])
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    top_k=st.sampled_from([None, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    min_tokens=st.sampled_from([0, 0, 9]),
    end_ids=st.just((11, 290)),
    expected_ids=st.lists(few, max_size=9).map(tuple),
)
jobs = st.tuples(st.lists(few, min_size=1, max_size=30), st.integers(1, 40), samplings)


def run(
    model: Any, work: Sequence[tuple[list[int], int, Sampling]], ledger: Ledger, most: int
) -> list[Inference]:
    inferences = [
        Inference(prompt, n, sampling, 0.0, end_ids=frozenset(sampling.end_ids))
        for prompt, n, sampling in work
    ]
    serve(model, inferences, StallFree(token_budget=24), ledger, most)
    return inferences


@given(work=st.lists(jobs, min_size=1, max_size=5), squeezed=st.booleans())
@examples(8, 200)
def test_tokens_are_the_same_with_drafts(
    model: Any, work: list[tuple[list[int], int, Sampling]], squeezed: bool
) -> None:
    """With shared prefixes; squeezed into so few blocks that requests are preempted."""
    size = model.block_tokens
    longest = max(-(-(len(prompt) + n) // size) for prompt, n, _ in work)

    def ledger() -> Ledger:
        if squeezed:
            return Ledger(longest + 1, size, growth_tokens=2, prefix_caching=True)
        return Ledger(200, size, prefix_caching=True)

    plain, guessed = run(model, work, ledger(), 0), run(model, work, ledger(), MOST)
    for expected, inference in zip(plain, guessed, strict=True):
        if inference.ids == expected.ids:
            assert inference.end == expected.end
            continue
        # keys of a prompt that was computed at once differ in their last bits from a decode's
        at = next(
            i for i, (a, b) in enumerate(zip(expected.ids, inference.ids, strict=False)) if a != b
        )
        assert is_near_tie(model, expected.ids[:at], expected.sampling)


def test_a_text_that_repeats_itself_is_computed_in_fewer_iterations(model: Any) -> None:
    """So the property above is about drafts that are accepted."""
    prompt = [7, 8, 9, 10, 11, 12, 13, 14] * 6
    (plain,) = run(model, [(prompt, 60, Sampling(temperature=0))], Ledger(50, 16), 0)
    (guessed,) = run(model, [(prompt, 60, Sampling(temperature=0))], Ledger(50, 16), MOST)
    assert guessed.ids == plain.ids
    assert guessed.accepted_drafts > 10


def test_an_answer_that_was_expected_is_drafted_from_its_first_token(model: Any) -> None:
    prompt = [11, 12, 13, 290, 198]

    def answer(sampling: Sampling) -> Inference:
        ledger = Ledger(20, model.block_tokens)
        (inference,) = run(model, [(prompt, 43, sampling)], ledger, MOST)
        return inference

    sampling = Sampling(seed=3)
    alone = answer(sampling)
    expected = tuple(alone.ids[len(prompt) :])
    guessed = answer(replace(sampling, expected_ids=expected))
    assert guessed.ids == alone.ids
    # the first token is drawn behind the prompt; every further iteration has MOST drafts
    assert (guessed.accepted_drafts, guessed.rejected_drafts) == (42 // (MOST + 1) * MOST, 0)
    assert alone.accepted_drafts < guessed.accepted_drafts / 2
