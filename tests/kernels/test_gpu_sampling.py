"""The Triton kernels, interpreted on a CPU, draw what the plain-torch twin draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import kernels.gpu.sampling
from runtime.sampling.sampler import SPARE, Known, Sampler, drawing_of
from seams import Opening, Sampling
from tests.examples import examples
from tests.kernels.conftest import DEVICE
from tests.runtime.test_sampling import CPU, mixture, samplings, some_logits

TIE = 1e-4  # the best two scores are closer: rounding decides


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """A few hundred tokens are several pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels.gpu.sampling, "PIECE", 128)
        yield


def check(logits: Tensor, rows: Sequence[Known]) -> None:
    size = logits.shape[-1]
    scores = drawing_of(rows, size, CPU).scores(logits)
    best = scores.topk(2).values
    drawn = Sampler(kernel=True).draw(logits.to(DEVICE), rows).cpu()
    same = (drawn == scores.max(-1).indices) | (best[:, 0] - best[:, 1] < TIE)
    assert same.all(), (drawn, scores.max(-1).indices, best)


@given(
    st.integers(0, 10_000),
    st.lists(samplings, min_size=1, max_size=4),
    st.sampled_from([40, 128, 500]),
    st.sampled_from([0.3, 3.0, 12.0]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
@examples(3, 200)
def test_rows_of_any_settings(seed, asked, size, spread, dtype) -> None:  # type: ignore[no-untyped-def]
    logits, rows = mixture(seed, asked, size, spread, dtype)
    before = logits.clone()
    check(logits, rows)
    assert torch.equal(logits, before)


def test_a_batch_that_stays_knows_what_it_drew() -> None:
    penalised = Sampling(seed=2, repetition_penalty=1.5, presence_penalty=1.0)
    sampler, growing = Sampler(kernel=True), [Opening(0, [0, 1, 2], 2, penalised)]
    for step in range(3):
        logits = some_logits(step, 1, 40)
        alone = Sampler().draw(logits, growing).tolist()
        assert sampler.draw(logits, growing).tolist() == alone
        growing[0].ids.extend(alone)  # type: ignore[attr-defined]
    assert sampler._batch is not None
    assert sampler._batch.left == SPARE - 3
