"""The compiled kernel computes what its plain-torch twin defines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.attention import KERNEL_MAX_TOKENS, RaggedAttention, RectangleAttention, Span, attend_rows
from gpt.cache import KVShape, RectangleKV, RectangleRow, SequenceKV
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
        kv = SequenceKV.empty(shape, start + count + 1)
        kv.keys.normal_()
        kv.values.normal_()
        twin = SequenceKV.empty(shape, start + count + 1)
        twin.keys.copy_(kv.keys)
        twin.values.copy_(kv.values)
        caches.append((kv, twin))
        spans.append((first, count, start))
        first += count
    q, k, v = torch.randn(total, 3, heads, head_dim).to(dtype).unbind(1)
    attend = RaggedAttention(
        [Span(*span, kv) for span, (kv, _) in zip(spans, caches, strict=True)], shape
    )
    for layer in range(2):
        expected = torch.zeros(total, heads, head_dim, dtype=dtype)
        twins = [
            Span(*span, twin) for span, (_, twin) in zip(spans, caches, strict=True) if span[1]
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


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5), st.lists(st.booleans()), st.integers(0, 9)
)
def test_padding_does_not_reach_the_tokens_of_a_rectangle(lengths, done, seed) -> None:  # type: ignore[no-untyped-def]
    """A prefill and two decodes, in which the rows that are done are padding."""
    torch.manual_seed(seed)
    heads, dim, count, capacity = 2, 16, len(lengths), max(lengths) + 2
    shape = KVShape(1, heads, dim, torch.float32, CPU)
    rectangle = RectangleKV(shape, count, capacity, masked=True)
    places = [RectangleRow(rectangle, row) for row in range(count)]
    alone = [SequenceKV.empty(shape, capacity) for _ in lengths]
    counts, starts = np.array(lengths), np.zeros(count, dtype=np.int64)
    goes_on = np.array([not (done + [False] * count)[row] for row in range(count)], dtype=np.int64)
    for width in (max(lengths), 1, 1):
        positions = ((starts + counts - width)[:, None] + np.arange(width)).clip(0)
        q, k, v = torch.randn(count * width, 3, heads, dim).unbind(1)
        out = RectangleAttention(rectangle, positions, counts)(0, q, k, v)
        assert out.isfinite().all()
        expected = torch.zeros_like(out)
        ends = [(row + 1) * width for row in range(count)]
        spans = [
            Span(end - n, int(n), int(start), kv)
            for end, n, start, kv in zip(ends, counts, starts, alone, strict=True)
            if n
        ]
        attend_rows(spans, 0, q, k, v, expected)
        for span in spans:
            tokens = slice(span.first, span.first + span.length)
            assert torch.allclose(out[tokens], expected[tokens], atol=1e-6)
        starts, counts = starts + counts, goes_on
    for place, kv, end in zip(places, alone, starts, strict=True):
        assert torch.equal(place.keys[:, :, :end], kv.keys[:, :, :end])
        assert torch.equal(place.values[:, :, :end], kv.values[:, :, :end])
