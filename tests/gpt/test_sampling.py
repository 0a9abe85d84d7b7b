"""Sampling draws from the distribution it should, and from nothing but (seed, position)."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from gpt.sampling import gumbel, logprobs, penalise, perturbed, sample, truncate
from seams import Opening, Sampling


def row(sampling: Sampling, position: int = 0) -> Opening:
    return Opening(0, range(position), position, sampling)


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, -1.0]])
    assert sample(logits, [row(Sampling(temperature=0))] * 2).tolist() == [1, 0]


def test_sampled_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025])
    draws = 40_000
    tokens = sample(
        probabilities.log().expand(draws, -1), [row(Sampling(seed=1), i) for i in range(draws)]
    )
    counts = tokens.bincount(minlength=5).double()
    expected = probabilities.double() * draws
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # the 99.9 % point of four degrees of freedom


def test_noise_of_neighbouring_seeds_positions_and_tokens_is_uncorrelated() -> None:
    keys = torch.arange(-200, 200, dtype=torch.int32)
    noise = gumbel(keys, 500)
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.02  # Euler's constant
    for a, b in ((noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1])):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.01


@given(st.integers(0, 2**64), st.integers(0, 1023), st.integers(1, 6), st.integers(0, 5))
def test_a_draw_does_not_depend_on_its_batch(seed, position, rows, index) -> None:  # type: ignore[no-untyped-def]
    index %= rows
    logits = torch.randn(rows, 50, generator=torch.Generator().manual_seed(seed % 2**32))
    others = [Sampling(seed=i, temperature=float(i % 3)) for i in range(rows)]
    others[index] = mine = Sampling(seed=seed, temperature=0.8, top_k=20, top_p=0.9)
    positions = [7] * rows
    positions[index] = position
    known = [row(sampling, at) for sampling, at in zip(others, positions, strict=True)]
    together = sample(logits, known)[index]
    assert together == sample(logits[index : index + 1], [row(mine, position)])[0]


@given(
    st.integers(0, 1000),
    st.floats(0.2, 3),
    st.none() | st.integers(1, 60),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]),
)
def test_truncation_keeps_what_transformers_keeps(seed, temperature, top_k, top_p) -> None:  # type: ignore[no-untyped-def]
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed)) * 3
    ids = torch.zeros(1, 1, dtype=torch.long)
    expected = TemperatureLogitsWarper(temperature)(ids, logits.clone())
    if top_k is not None:
        expected = TopKLogitsWarper(min(top_k, 50))(ids, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    sampling = Sampling(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p)
    kept = perturbed(logits, [row(sampling)])[0] > -torch.inf
    assert torch.equal(kept, expected[0] > -torch.inf)


@given(st.integers(0, 1000), st.sampled_from([0.95, 0.5, 0.1]))
def test_the_typical_set_is_that_of_transformers(seed: int, typical_p: float) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed)) * 3
    expected = TypicalLogitsWarper(typical_p)(torch.zeros(1, 1, dtype=torch.long), logits.clone())
    truncate(scores := logits[0].clone(), Sampling(typical_p=typical_p))
    assert torch.equal(scores > -torch.inf, expected[0] > -torch.inf)


@given(st.lists(st.integers(0, 19), min_size=1, max_size=12), st.floats(0.5, 2))
def test_the_repetition_penalty_is_that_of_transformers(known: list[int], rate: float) -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(len(known)))
    expected = RepetitionPenaltyLogitsProcessor(rate)(torch.tensor([known]), logits.clone())
    penalise(ours := logits[0].clone(), Opening(0, known, 1, Sampling(repetition_penalty=rate)))
    assert torch.allclose(ours, expected[0])


def test_penalties_count_generated_tokens_and_bias_adds() -> None:
    sampling = Sampling(
        presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((0, 3.0), (3, -100.0))
    )
    penalise(logits := torch.zeros(5), Opening(0, [1, 1, 2, 2, 4], 2, sampling))
    assert logits.tolist() == [3.0, 0.0, -1.0, -100.0, -0.75]


def test_a_shaped_request_leaves_its_neighbours_logits_alone() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    biased = Sampling(temperature=0, logit_bias=((2, -100.0),))
    rows = [row(biased), row(Sampling(temperature=0))]
    assert sample(logits, rows).tolist() == [1, 2]
    assert logits.tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]


def test_logprobs_are_those_of_the_plain_softmax() -> None:
    logits = torch.randn(2, 9)
    expected = logits.log_softmax(-1)
    found = logprobs(logits, [4, 0], 3)
    for row, token in ((0, 4), (1, 0)):
        assert found[row].token == token
        assert abs(found[row].logprob - float(expected[row, token])) < 1e-6
        best = expected[row].sort(descending=True)
        assert [i for i, _ in found[row].top] == best.indices[:3].tolist()
