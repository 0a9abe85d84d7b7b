"""The kernels for CPUs, Triton's, interpreted on a CPU, and their plain-torch twins compute
attention as it is defined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention_kernels
from kernels.gpu.paged import queries_per_tile
from runtime.attention import (
    FOR_PROMPTS,
    RaggedAttention,
    Span,
    Spans,
    TorchAttention,
    attention_on_cpu,
)
from runtime.cache import BlockTable, KVPool, KVShape
from runtime.gpu.paged import PagedAttention, sent_alone
from tests.examples import examples
from tests.kernels.conftest import DEVICE

CPU = torch.device("cpu")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# relative to the largest value
TOLERANCE = {F32: 3e-6, F16: 2e-3, BF16: 1e-2}
BY_CPU = ["attend_f32", "attend_bf16", *FOR_PROMPTS]

rows = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 150)), min_size=1, max_size=6)
windows = st.sampled_from([None, None, 1, 20, 64])
grouped = st.sampled_from([(1, 1), (3, 3), (8, 2), (7, 1), (16, 16)])
seeds = st.integers(0, 2**31)


class Iteration(NamedTuple):
    """Rows over a pool that is no number wherever nothing was written."""

    pool: KVPool
    spans: Sequence[Span]
    q: Tensor
    k: Tensor
    v: Tensor


def iteration(
    lengths: Sequence[tuple[int, int]], shape: KVShape, heads: int, seed: int
) -> Iteration:
    """`lengths`: of each row, tokens in the pool and new ones."""
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    needed = [-(-(start + count) // shape.block_tokens) for start, count in lengths]
    blocks = iter(generator.permutation(sum(needed) + 3).tolist())
    pool, spans, first = KVPool(shape, sum(needed) + 3), [], 0
    pool.keys.fill_(float("nan"))
    pool.values.fill_(float("nan"))
    for (start, count), size in zip(lengths, needed, strict=True):
        table = BlockTable([next(blocks) for _ in range(size)])
        spans.append(Span(first, count, start, table))
        first += count
        at = torch.from_numpy(table.slots(0, start, shape.block_tokens))
        for layer in range(shape.n_layer):
            for slots in pool.slots(layer):
                slots[at] = torch.randn(start, shape.kv_heads, shape.head_dim).to(slots)
    # q, k and v each with a stride of its own
    q = torch.randn(first, heads + 1, shape.head_dim).to(pool.keys)[:, :heads]
    k, v = torch.randn(first, 2, shape.kv_heads, shape.head_dim).to(pool.keys).unbind(1)
    return Iteration(pool, spans, q, k, v.contiguous())


def attended(of: Iteration, by: str, spans: Sequence[Span], layer: int = 0) -> Tensor:
    """What a kernel makes of some of the rows; in the place of one that this machine has not got,
    the one that it takes. Writes new keys and values to the pool."""
    shape = of.pool.shape
    if by != "triton":
        kernel = attention_kernels(shape.head_dim).get(by)
        if kernel is None:
            return attention_on_cpu(Spans.of(spans), of.pool)(layer, *of[2:])
        return RaggedAttention(Spans.of(spans), of.pool, kernel)(layer, *of[2:])
    present = [span for span in spans if span.length]
    tile = queries_per_tile(shape.dtype, shape.head_dim) // (of.q.shape[1] // shape.kv_heads)
    laid = sent_alone(np.zeros(len(of.q), dtype=np.int64), present, shape, tile)
    return PagedAttention(laid, of.pool)(layer, *of[2:])


def defined(of: Iteration, layer: int, window: int | None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of the positions that a token sees, in float64."""
    pool, spans, q, k, v = of
    group, out = q.shape[1] // k.shape[1], torch.zeros_like(q, dtype=torch.float64)
    for span in spans:
        past = torch.from_numpy(span.table.slots(0, span.start, pool.shape.block_tokens))
        new = slice(span.first, span.first + span.length)
        keys, values = (
            torch.cat([slots[past], fresh[new]]).double().repeat_interleave(group, 1)
            for slots, fresh in zip(pool.slots(layer), (k, v), strict=True)
        )  # [end, H, D]
        query, key = span.start + torch.arange(span.length)[:, None], torch.arange(len(keys))
        hidden = (key > query) | (key <= query - (window or len(keys)))
        scores = torch.einsum("nhd,thd->hnt", q[new].double(), keys) * q.shape[2] ** -0.5
        weights = scores.masked_fill(hidden.to(q.device), -torch.inf).softmax(-1)
        out[new] = torch.einsum("hnt,thd->nhd", weights, values)
    return out


def check(by: str, of: Iteration) -> None:
    if not len(of.q):
        return
    shape, twin = of.pool.shape, KVPool(of.pool.shape, of.pool.keys.shape[1])
    twin.keys.copy_(of.pool.keys)
    twin.values.copy_(of.pool.values)
    for layer in range(shape.n_layer):
        window = shape.windows[layer]
        expected = defined(of, layer, window)
        found = TorchAttention(Spans.of(of.spans), twin)(layer, *of[2:])
        limit = TOLERANCE[shape.dtype] * max(1.0, float(expected.abs().max()))
        for actual in (attended(of, by, of.spans, layer), found):
            assert torch.allclose(actual.double(), expected, rtol=0, atol=limit)
    # both wrote the same, and nothing but the new positions
    for one, other in ((of.pool.keys, twin.keys), (of.pool.values, twin.values)):
        assert torch.equal(one.nan_to_num(99), other.nan_to_num(99))
    written = sum(span.start + span.length for span in of.spans)
    numbers = int(twin.keys.isfinite().sum())
    assert numbers == shape.n_layer * written * shape.kv_heads * shape.head_dim


@given(
    st.sampled_from(BY_CPU), rows, grouped, st.sampled_from([16, 48, 64, 80, 256]), windows,
    st.sampled_from([16, 32]), seeds,
)  # fmt: skip
@examples(25, 400)
def test_kernels_for_cpus_and_their_twin_compute_rows_of_any_length(  # type: ignore[no-untyped-def]
    by, lengths, heads, head_dim, window, block_tokens, seed
) -> None:
    dtype = F32 if by == "attend_f32" else BF16
    shape = KVShape(2, heads[1], head_dim, dtype, CPU, block_tokens, (window, None))
    check(by, iteration(lengths, shape, heads[0], seed))


@pytest.mark.parametrize(
    ("lengths", "heads", "head_dim", "dtype", "window"),
    [
        ([(0, 5), (99, 1), (63, 1), (20, 37), (0, 1), (0, 70)], (2, 2), 16, F32, None),
        ([(99, 1), (20, 37), (0, 70)], (6, 2), 40, BF16, None),
        ([(600, 1), (255, 1), (256, 1), (7, 9), (0, 1)], (2, 2), 16, F32, None),  # split
        ([(600, 1), (19, 1), (120, 40), (0, 70)], (2, 2), 16, F32, 20),
    ],
)
def test_one_launch_of_triton_serves_prompts_chunks_and_decodes(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    window: int | None,
) -> None:
    shape = KVShape(1, heads[1], head_dim, dtype, DEVICE, windows=(window,))
    check("triton", iteration(lengths, shape, heads[0], 0))


@pytest.mark.parametrize("by", BY_CPU)
def test_a_token_is_the_same_to_the_last_bit_however_its_prompt_is_divided(by: str) -> None:
    """And whatever is computed beside it. Kernels for prompts do not compute single tokens."""
    if by not in attention_kernels(80):
        pytest.skip("not on this machine")
    one = 2 if by in FOR_PROMPTS else 1
    shape = KVShape(1, 2, 80, F32 if by == "attend_f32" else BF16, CPU, windows=(40,))
    whole = iteration([(0, 300), (30, 1), (70, 33)], shape, 6, seed=2)
    together, start = attended(whole, by, whole.spans), 0
    for length in (2, 31, 40, 3, one, 74, 150 - one):
        part = Span(start, length, start, whole.spans[0].table)
        out = attended(whole, by, [part])
        assert torch.equal(out[start : start + length], together[start : start + length])
        start += length
    assert start == 300
    assert torch.equal(attended(whole, by, whole.spans[1:2])[300], together[300])
