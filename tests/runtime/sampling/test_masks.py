"""What a mask does to a draw: only what it allows is drawn, and rows without one do not notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import sampling_library
from requested import Sampling
from runtime.grammar.masks import Masks
from runtime.sampling.sampler import Sampler, allowed_of, drawing_of
from seams import Opening
from tests.runtime.sampling.test_sampler import CPU, samplings, some_logits

needs_kernel = pytest.mark.skipif(sampling_library() is None, reason="no compiler")


def masks_of(allowed: list[list[int] | None], size: int) -> Masks:
    places = np.full(len(allowed), -1)
    own = [i for i, tokens in enumerate(allowed) if tokens is not None]
    places[own] = range(len(own))
    words = -(-size // 32)
    flags = np.zeros((len(own), words * 32), np.uint8)
    for flag, i in zip(flags, own, strict=True):
        flag[allowed[i]] = 1
    bits = np.packbits(flags, axis=1, bitorder="little").view(np.int32)
    return Masks(places, bits)


def rows_of(asked: list[Sampling], seed: int) -> list[Opening]:
    ids = torch.randint(0, 40, (len(asked), 12), generator=torch.Generator().manual_seed(seed))
    return [
        Opening(i, ids[i, : 4 + i].tolist(), 1 + i, sampling) for i, sampling in enumerate(asked)
    ]


def twin(logits: Tensor, rows: list[Opening], masks: Masks) -> list[int]:
    drawing = drawing_of(rows, logits.shape[-1], CPU)
    tokens: list[int] = replace(drawing, allowed=allowed_of(masks, CPU)).draw(logits).tolist()
    return tokens


some_tokens = st.none() | st.lists(st.integers(0, 39), min_size=1, max_size=12, unique=True)
masked = st.lists(st.tuples(samplings, some_tokens), min_size=1, max_size=6)


@needs_kernel
@given(
    st.integers(0, 10_000),
    masked,
    st.sampled_from([40, 128, 500, 3000]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_kernel_draws_what_its_twin_draws_and_only_what_is_allowed(  # type: ignore[no-untyped-def]
    seed, asked, size, dtype
) -> None:
    logits = some_logits(seed, len(asked), size).to(dtype)
    rows = rows_of([sampling for sampling, _ in asked], seed)
    # scattered over blocks of the vocabulary, or within one
    step = 1 + seed % 2 * 76
    allowed = [tokens and [token * step % size for token in tokens] for _, tokens in asked]
    masks = masks_of(allowed, size)
    before = logits.clone()
    drawn = Sampler().draw(logits, rows, masks).tolist()
    assert drawn == twin(logits, rows, masks)
    assert torch.equal(logits, before)
    for token, tokens in zip(drawn, allowed, strict=True):
        assert tokens is None or token in tokens


@given(st.integers(0, 10_000), masked)
def test_rows_without_a_mask_draw_what_they_draw_without_the_others(seed, asked) -> None:  # type: ignore[no-untyped-def]
    logits = some_logits(seed, len(asked), 128)
    rows = rows_of([sampling for sampling, _ in asked], seed)
    masks = masks_of([tokens for _, tokens in asked], 128)
    drawn, free = Sampler().draw(logits, rows, masks), Sampler().draw(logits, rows)
    unmasked = torch.from_numpy(masks.places < 0)
    assert torch.equal(drawn[unmasked], free[unmasked])


@given(st.integers(0, 1000), samplings)
def test_a_mask_of_one_token_draws_it_whatever_is_asked(seed: int, sampling: Sampling) -> None:
    rows, logits = rows_of([sampling], seed), some_logits(seed, 1, 300)
    assert Sampler().draw(logits, rows, masks_of([[seed % 40]], 300)).tolist() == [seed % 40]


@given(st.integers(0, 1000), samplings)
def test_a_mask_of_all_tokens_changes_nothing(seed: int, sampling: Sampling) -> None:
    rows, logits = rows_of([sampling], seed), some_logits(seed, 1, 40)
    masks = masks_of([list(range(40))], 40)
    assert torch.equal(Sampler().draw(logits, rows, masks), Sampler().draw(logits, rows))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_comes_before_min_tokens(temperature: float) -> None:
    """Where a grammar allows the end alone, it ends."""
    sampling = Sampling(temperature=temperature, min_tokens=9, end_ids=(3, 5))
    rows, logits = rows_of([sampling], 0), some_logits(0, 1, 40)
    masks = masks_of([[3, 5]], 40)
    assert Sampler().draw(logits, rows, masks).tolist()[0] in (3, 5)
    assert twin(logits, rows, masks)[0] in (3, 5)


def test_the_tokens_beyond_a_vocabulary_are_never_drawn() -> None:
    """A network may be wider than its vocabulary, and a mask than its bits."""
    logits = torch.zeros(1, 70)
    logits[0, 40:] = 100.0
    rows = rows_of([Sampling(temperature=0)], 0)
    masks = masks_of([list(range(40))], 70)
    assert Sampler().draw(logits, rows, masks).tolist() == [0]


@given(st.lists(samplings, min_size=2, max_size=4), st.data())
def test_a_batch_with_forced_tokens_draws_what_its_rows_draw_alone(asked, data) -> None:  # type: ignore[no-untyped-def]
    """Some rows know more than what was drawn for them."""
    sequences = [Opening(i, [i, 1, 2], 2, sampling) for i, sampling in enumerate(asked)]
    sampler = Sampler()
    for step in range(5):
        logits = some_logits(step, len(sequences), 40)
        lone = [
            Sampler().draw(logits[i : i + 1], [known]).item() for i, known in enumerate(sequences)
        ]
        assert sampler.draw(logits, sequences).tolist() == lone
        for known, token in zip(sequences, lone, strict=True):
            known.ids.extend([token, *data.draw(st.lists(st.integers(0, 39), max_size=2))])  # type: ignore[attr-defined]
