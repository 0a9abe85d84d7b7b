"""The compiled kernel computes what its plain-torch twin defines."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.attention import KERNEL_MAX_TOKENS, RaggedAttention, RectangleAttention, Span, attend_rows
from gpt.cache import KVShape, RectangleKV, SequenceKV
from kernels import HEAD_DIMS, KernelError, attention_library

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}  # relative to the largest value

rows = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, KERNEL_MAX_TOKENS + 20)), min_size=1, max_size=6
)


@pytest.mark.skipif(attention_library() is None, reason="no C++ compiler on this machine")
@given(
    rows,
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_kernel_and_twin_agree_for_rows_of_any_length(rows, head_dim, dtype, seed) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(seed)
    heads, total = 3, sum(count for _, count in rows)
    shape = KVShape(2, heads, head_dim, dtype, CPU)
    caches, spans, first = [], [], 0
    for start, count in rows:
        kv = SequenceKV(shape, start + count + 1)
        kv.keys.normal_()
        kv.values.normal_()
        twin = SequenceKV(shape, start + count + 1)
        twin.keys.copy_(kv.keys)
        twin.values.copy_(kv.values)
        caches.append((kv, twin))
        spans.append((first, count, start))
        first += count
    q, k, v = torch.randn(total, 3, heads, head_dim).to(dtype).unbind(1)
    attend = RaggedAttention(
        [Span(*span, kv.keys, kv.values) for span, (kv, _) in zip(spans, caches, strict=True)],
        dtype,
        CPU,
    )
    for layer in range(2):
        expected = torch.zeros(total, heads, head_dim, dtype=dtype)
        twins = [
            Span(*span, twin.keys, twin.values)
            for span, (_, twin) in zip(spans, caches, strict=True)
            if span[1]
        ]
        attend_rows(twins, layer, q, k, v, expected)
        actual = attend(layer, q, k, v)
        limit = TOLERANCE[dtype] * max(1.0, float(expected.abs().max())) if total else 0
        assert torch.allclose(actual.float(), expected.float(), rtol=0, atol=limit)
    for kv, twin in caches:
        assert torch.equal(kv.keys.nan_to_num(), twin.keys.nan_to_num())
        assert torch.equal(kv.values.nan_to_num(), twin.values.nan_to_num())


@pytest.mark.skipif(attention_library() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("name", ["attend_f32", "attend_bf16"])
def test_the_kernel_says_so_where_it_has_computed_nothing(name: str) -> None:
    attend = getattr(attention_library(), name)
    nothing = [0] * 4 + [0] * 3 + [None] * 6
    for head_dim in HEAD_DIMS:
        assert attend(head_dim, *nothing) == 0
    with pytest.raises(KernelError, match="heads of 24"):
        attend(24, *nothing)


def test_padding_does_not_reach_the_tokens_of_a_rectangle() -> None:
    torch.manual_seed(0)
    heads, head_dim, width, lengths = 2, 16, 7, [7, 3, 1]
    shape = KVShape(1, heads, head_dim, torch.float32, CPU)
    rectangle = RectangleKV(shape, len(lengths), width)
    rectangle.pads = [width - length for length in lengths]
    q, k, v = torch.randn(len(lengths) * width, 3, heads, head_dim).unbind(1)
    out = RectangleAttention(rectangle, width, CPU)(0, q, k, v).view(len(lengths), width, heads, -1)
    for row, length in enumerate(lengths):
        kv = SequenceKV(shape, length)
        alone = torch.zeros(length, heads, head_dim)
        tokens = slice((row + 1) * width - length, (row + 1) * width)
        span = Span(0, length, 0, kv.keys, kv.values)
        attend_rows([span], 0, q[tokens], k[tokens], v[tokens], alone)
        assert torch.allclose(out[row, width - length :], alone, atol=1e-6)
