"""Attention and sampling as processors without AVX-512 get them, whose vectors have fewer lanes."""

from __future__ import annotations

import platform

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from requested import Sampling
from runtime.attention import RaggedAttention
from runtime.cache import KVShape
from tests.runtime.sampling.test_sampler import row, sample, samplings, some_logits, twin
from tests.runtime.test_attention import CPU, check, defined, iteration

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="code for x86-64"),
    pytest.mark.parametrize("processor", ["haswell", "x86-64"]),
]


@pytest.fixture(autouse=True)
def built(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, built for another processor."""
    monkeypatch.setattr(kernels, "FLAGS", [*kernels.FLAGS, f"-march={processor}"])
    attention = {dim: kernels.attention_kernels.__wrapped__(dim) for dim in (64, 80)}
    sampling = kernels.sampling_library.__wrapped__()
    if not attention[64] or sampling is None:
        pytest.skip("no C++ compiler on this machine")
    assert attention[64].keys() == {"attend_f32", "attend_bf16"}
    monkeypatch.setattr("runtime.attention.attention_kernels", attention.__getitem__)
    monkeypatch.setattr("runtime.sampling.sampler.sampling_library", lambda: sampling)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("heads", "head_dim"), [((2, 2), 64), ((6, 2), 80)])
def test_attention(
    heads: tuple[int, int], head_dim: int, window: int | None, dtype: torch.dtype
) -> None:
    shape = KVShape(1, heads[1], head_dim, dtype, CPU, windows=(window,))
    of = iteration([(0, 150), (40, 1), (70, 33), (200, 1), (5, 2)], shape, heads[0], seed=1)
    out = RaggedAttention(of.spans, of.pool, scale=0.2)(0, *of[2:])
    check(out, defined(of, 0, window, 0.2))


@given(st.integers(0, 10_000), st.lists(samplings, min_size=1, max_size=6))
def test_sampling(processor: str, seed: int, asked: list[Sampling]) -> None:
    for size in (40, 128, 5000):
        for dtype in (torch.float32, torch.bfloat16):
            logits = some_logits(seed, len(asked), size).to(dtype)
            rows = [row(sampling) for sampling in asked]
            assert sample(logits, rows).tolist() == twin(logits, rows).tolist()
