"""Sampling draws from the distribution it should, and from nothing but (seed, position)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

import runtime.sampling.scoring
from kernels import draw_kernel
from runtime.grammar.matching import Masks
from runtime.sampling.drawing import gumbel, keys, truncated
from runtime.sampling.sampler import Known, Sampler, allowed_of, asked_of, drawing_of
from runtime.sampling.scoring import Targets, flattened, logprobs_by_row, score_all
from runtime.transfer import send
from seams import Opening, Sampling

CPU = torch.device("cpu")
needs_kernel = pytest.mark.skipif(draw_kernel("f32") is None, reason="no compiler")


def row(sampling: Sampling, position: int = 1) -> Opening:
    return Opening(0, range(position), position, sampling)


def sample(logits: Tensor, rows: Sequence[Known], masks: Masks | None = None) -> Tensor:
    return Sampler().draw(logits, rows, masks)


def twin(logits: Tensor, rows: Sequence[Known], masks: Masks | None = None) -> Tensor:
    drawing = drawing_of(rows, logits.shape[-1], CPU)
    if masks is not None:
        drawing = replace(drawing, allowed=allowed_of(masks, CPU))
    return drawing.draw(logits)


def some_logits(seed: int, rows: int, size: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * spread


def mixture(
    seed: int, asked: Sequence[Sampling], size: int, spread: float, dtype: torch.dtype
) -> tuple[Tensor, list[Opening]]:
    """Rows that know some tokens, and logits."""
    known = torch.randint(0, 40, (len(asked), 12), generator=torch.Generator().manual_seed(seed))
    rows = [
        Opening(i, known[i, : 4 + i].tolist(), 1 + i, sampling) for i, sampling in enumerate(asked)
    ]
    return some_logits(seed, len(asked), size, spread).to(dtype), rows


some_mass = st.just(1.0) | st.floats(0.01, 0.99)
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64),
    temperature=st.just(0.0) | st.floats(0.2, 3),
    top_k=st.none() | st.integers(1, 600),
    top_p=some_mass,
    min_p=st.just(0.0) | st.floats(0.01, 1),
    typical_p=some_mass,
    repetition_penalty=st.just(1.0) | st.floats(0.5, 2),
    presence_penalty=st.just(0.0) | st.floats(-2, 2),
    frequency_penalty=st.just(0.0) | st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 39), st.floats(-100, 100), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
    min_tokens=st.integers(0, 4),
    end_ids=st.lists(st.integers(0, 39), max_size=3, unique=True).map(tuple),
)


@pytest.mark.parametrize(
    ("top_p", "kept", "most"),
    [(1.0, [0, 1, 2, 3, 4], 18.5), (0.8, [1, 3, 4], 13.8)],  # 99.9 % points of 4 and 2 degrees
)
def test_frequencies_are_the_probabilities_of_what_is_kept(
    top_p: float, kept: list[int], most: float
) -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.025, 0.25, 0.125])
    draws = 40_000
    rows = [row(Sampling(seed=2, top_p=top_p), i + 1) for i in range(draws)]
    counts = sample(probabilities.log().expand(draws, -1), rows).bincount(minlength=5).double()
    assert counts[kept].sum() == draws
    expected = probabilities[kept].double() / probabilities[kept].sum() * draws
    assert ((counts[kept] - expected) ** 2 / expected).sum() < most


def test_noise_of_neighbouring_seeds_positions_and_tokens_is_uncorrelated() -> None:
    noise = gumbel(torch.arange(-200, 200, dtype=torch.int32), 500)
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.02  # Euler's constant
    for a, b in ((noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1])):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.01


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_keys_are_those_of_splitmix64_in_whole_numbers(seed: int, position: int) -> None:
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 1) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
    found = keys(signed, torch.tensor([position]))
    assert found.item() == (z ^ (z >> 31)) % 2**32 - 2**31


# --- cuts and penalties ---------------------------------------------------------------------


@given(
    st.integers(0, 1000),
    st.floats(0.2, 3),
    st.sampled_from([{}, {"top_k": 7}, {"min_p": 0.05}, {"min_p": 0.7}, {"typical_p": 0.5}]),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]),
)
def test_truncation_keeps_what_transformers_keeps(seed, temperature, cut, top_p) -> None:  # type: ignore[no-untyped-def]
    logits = some_logits(seed, 1, 50)
    top_p = 1.0 if "typical_p" in cut else top_p  # in which order is ours to choose
    asked = Sampling(top_p=top_p, **cut)
    warpers: list[Any] = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(asked.top_k)] if asked.top_k else []
    warpers += [MinPLogitsWarper(asked.min_p)] if asked.min_p else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [TypicalLogitsWarper(asked.typical_p)] if asked.typical_p < 1 else []
    expected = logits.clone()
    for warper in warpers:
        expected = warper(torch.zeros(1, 1, dtype=torch.long), expected)
    kept = truncated(logits / temperature, asked_of([row(asked)], 50, CPU))
    assert torch.equal(kept > -torch.inf, expected > -torch.inf)


@pytest.mark.parametrize("draw", [sample, twin])
@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"typical_p": 0.5}])
def test_each_truncation_is_part_of_the_draw_without_the_others(
    draw: Callable[[Tensor, Sequence[Known]], Tensor], cut: dict[str, Any]
) -> None:
    draws, logits = 400, some_logits(1, 1, 40, 1.0)
    rows = [row(Sampling(seed=2, **cut), i + 1) for i in range(draws)]
    kept = truncated(logits, asked_of(rows[:1], 40, CPU))[0] > -torch.inf
    drawn = draw(logits.expand(draws, -1), rows)
    assert set(drawn.tolist()) == set(kept.nonzero().flatten().tolist())


def penalised(logits: Tensor, known: Opening) -> Tensor:
    return drawing_of([known], len(logits), CPU).shaped(logits[None])[0]


@given(st.lists(st.integers(0, 19), min_size=1, max_size=12), st.floats(0.5, 2))
def test_the_repetition_penalty_is_that_of_transformers(known: list[int], rate: float) -> None:
    logits = some_logits(len(known), 1, 20, 1.0)
    expected = RepetitionPenaltyLogitsProcessor(rate)(torch.tensor([known]), logits.clone())
    ours = penalised(logits[0], Opening(0, known, 1, Sampling(repetition_penalty=rate)))
    assert torch.allclose(ours, expected[0])


def test_penalties_count_generated_tokens_and_bias_adds() -> None:
    sampling = Sampling(
        presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((0, 3.0), (3, -100.0))
    )
    logits = penalised(torch.zeros(5), Opening(0, [1, 1, 2, 2, 4], 2, sampling))
    assert logits.tolist() == [3.0, 0.0, -1.0, -100.0, -0.75]


def test_end_tokens_are_drawn_after_min_tokens_and_not_before() -> None:
    sampling = Sampling(temperature=0, min_tokens=2, end_ids=(1, 3))
    logits = torch.tensor([[0.0, 4.0, 1.0, 3.0]])
    sampler, growing = Sampler(), Opening(0, [0, 0, 0], 3, sampling)
    drawn = []
    for _ in range(4):
        drawn += (new := sampler.draw(logits, [growing]).tolist())
        growing.ids.extend(new)  # type: ignore[attr-defined]
    assert drawn == [2, 2, 1, 1]


# --- the kernel, and batches ----------------------------------------------------------------


def masks_of(allowed: Sequence[Sequence[int] | None], size: int) -> Masks:
    places = np.full(len(allowed), -1)
    own = [i for i, tokens in enumerate(allowed) if tokens is not None]
    places[own] = range(len(own))
    flags = np.zeros((len(own), -(-size // 32) * 32), np.uint8)
    for flag, i in zip(flags, own, strict=True):
        flag[allowed[i]] = 1
    return Masks(places, np.packbits(flags, axis=1, bitorder="little").view(np.int32))


some_tokens = st.none() | st.lists(st.integers(0, 39), min_size=1, max_size=12, unique=True)
masked = st.lists(st.tuples(samplings, some_tokens), min_size=1, max_size=6)


@needs_kernel
@given(
    st.integers(0, 10_000),
    masked,
    st.sampled_from([40, 128, 500, 3000]),
    st.sampled_from([0.3, 3.0, 12.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_kernel_draws_what_its_twin_draws_and_only_what_is_allowed(  # type: ignore[no-untyped-def]
    seed, asked, size, spread, dtype
) -> None:
    logits, rows = mixture(seed, [sampling for sampling, _ in asked], size, spread, dtype)
    # scattered over blocks of the vocabulary, or within one
    step = 1 + seed % 2 * 76
    allowed = [tokens and [token * step % size for token in tokens] for _, tokens in asked]
    masks = None if all(tokens is None for tokens in allowed) else masks_of(allowed, size)
    before = logits.clone()
    drawn = sample(logits, rows, masks)
    assert drawn.tolist() == twin(logits, rows, masks).tolist()
    assert torch.equal(logits, before)
    for token, tokens in zip(drawn.tolist(), allowed, strict=True):
        assert tokens is None or token in tokens
    free = torch.tensor([tokens is None for tokens in allowed])
    assert torch.equal(drawn[free], sample(logits, rows)[free]), "as without the others' masks"


@pytest.mark.parametrize("forced", [False, True])
@given(st.lists(samplings, min_size=2, max_size=4), st.data())
def test_a_batch_that_stays_or_changes_draws_what_its_rows_draw_alone(forced, asked, data) -> None:  # type: ignore[no-untyped-def]
    """Rows pause, come back and are prompted again, as in iterations; some know more than what was
    drawn for them."""
    sequences = [Opening(i, [i, 1, 2], 2, sampling) for i, sampling in enumerate(asked)]
    sampler = Sampler()
    for step in range(5):
        some = st.lists(st.sampled_from(sequences), min_size=1, unique_by=id)
        present = sequences if forced else data.draw(some)
        logits = some_logits(step, len(present), 40)
        lone = [sample(logits[i : i + 1], [known]).item() for i, known in enumerate(present)]
        assert sampler.draw(logits, present).tolist() == lone
        count = data.draw(st.integers(0, 2)) if forced else 0
        for known, token in zip(present, lone, strict=True):
            more = data.draw(st.lists(st.integers(0, 39), min_size=count, max_size=count))
            known.ids.extend([token, *more])


def test_logprobs_are_those_of_the_plain_softmax_in_any_number_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunk = 20  # positions
    monkeypatch.setattr(runtime.sampling.scoring, "CHUNK_LOGITS", chunk * 9)
    torch.manual_seed(0)
    hidden, head = torch.randn(3 * chunk, 8), torch.nn.Linear(8, 9)
    long, short = torch.randint(9, (2 * chunk,)).tolist(), [4, 0, 3]
    targets = [Targets(0, 1, 2, long, 3), Targets(2, 1, 2 * chunk + 10, short, 1)]
    with torch.no_grad():
        places, scored = send(flattened(targets), CPU)
        found = score_all(places, scored, 3, hidden, head, 9)
        expected = head(hidden).log_softmax(-1)
    for (_, _, at, tokens, alternatives), words in zip(
        targets, logprobs_by_row(targets, [tensor.numpy() for tensor in found]), strict=True
    ):
        for place, token, word in zip(range(at, at + len(tokens)), tokens, words, strict=True):
            assert word.token == token
            assert abs(word.logprob - float(expected[place, token])) < 1e-6
            best = expected[place].sort(descending=True).indices[:alternatives]
            assert [id for id, _ in word.top] == best.tolist()
