"""The compiled kernel and its plain-torch twin compute attention as it is defined."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention_kernels
from runtime.attention import (
    FOR_PROMPTS,
    Chunk,
    RaggedAttention,
    RectangleAttention,
    Span,
    attend_rows,
    fastest_for_prompts,
)
from runtime.cache import BlockTable, KVPool, KVShape

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2}  # relative to the largest value

rows = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 150)), min_size=1, max_size=6)


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
                slots[at] = torch.randn(start, shape.kv_heads, shape.head_dim).to(shape.dtype)
    # q, k and v each with a stride of its own
    q = torch.randn(first, heads + 1, shape.head_dim).to(shape.dtype)[:, :heads]
    k, v = torch.randn(first, 2, shape.kv_heads, shape.head_dim).to(shape.dtype).unbind(1)
    return Iteration(pool, spans, q, k, v.contiguous())


def defined(of: Iteration, layer: int, window: int | None, scale: float) -> Tensor:
    """softmax(q k^T) v of the positions that a token sees, in float64."""
    pool, spans, q, k, v = of
    group, out = q.shape[1] // k.shape[1], torch.zeros(q.shape, dtype=torch.float64)
    for span in spans:
        past = torch.from_numpy(span.table.slots(0, span.start, pool.shape.block_tokens))
        new = slice(span.first, span.first + span.length)
        keys, values = (
            torch.cat([slots[past], fresh[new]]).double().repeat_interleave(group, 1)
            for slots, fresh in zip(pool.slots(layer), (k, v), strict=True)
        )  # [end, H, D]
        query, key = span.start + torch.arange(span.length)[:, None], torch.arange(len(keys))
        hidden = (key > query) | (key <= query - (window or len(keys)))
        scores = torch.einsum("nhd,thd->hnt", q[new].double(), keys) * scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[new] = torch.einsum("hnt,thd->nhd", weights, values)
    return out


def check(actual: Tensor, expected: Tensor) -> None:
    limit = TOLERANCE[actual.dtype] * max(1.0, float(expected.abs().max()))
    assert torch.allclose(actual.double(), expected, rtol=0, atol=limit)


@given(
    rows,
    st.sampled_from([(1, 1), (3, 3), (8, 2), (7, 1), (16, 16)]),
    st.sampled_from([16, 64, 80, 256]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([None, None, 1, 20, 64]),
    st.sampled_from([16, 32]),
    st.integers(0, 2**31),
)
def test_kernel_and_twin_compute_attention_for_rows_of_any_length(  # type: ignore[no-untyped-def]
    lengths, heads, head_dim, dtype, window, block_tokens, seed
) -> None:
    heads, kv_heads = heads
    shape = KVShape(2, kv_heads, head_dim, dtype, CPU, block_tokens, (window, None))
    of = iteration(lengths, shape, heads, seed)
    if not len(of.q):
        return
    twin = KVPool(shape, of.pool.keys.shape[1])
    twin.keys.copy_(of.pool.keys)
    twin.values.copy_(of.pool.values)
    attend = RaggedAttention(of.spans, of.pool, scale=0.2)
    for layer, own in enumerate((window, None)):
        chunks = [Chunk(span, shape, own) for span in of.spans if span.length]
        expected = defined(of, layer, own, 0.2)
        check(attend(layer, of.q, of.k, of.v), expected)
        by_torch = torch.zeros_like(of.q)
        attend_rows(chunks, twin, layer, of.q, of.k, of.v, by_torch, 0.2)
        check(by_torch, expected)
    # both wrote the same, and nothing but the new positions
    assert torch.equal(of.pool.keys.nan_to_num(99), twin.keys.nan_to_num(99))
    assert torch.equal(of.pool.values.nan_to_num(99), twin.values.nan_to_num(99))
    written = sum(span.start + span.length for span in of.spans)
    assert int(twin.keys.isfinite().sum()) == 2 * written * kv_heads * head_dim


@pytest.mark.skipif(not attention_kernels(80), reason="no C++ compiler on this machine")
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("name", ["attend_f32", "attend_bf16", *FOR_PROMPTS])
def test_a_token_is_the_same_to_the_last_bit_however_its_prompt_is_divided(
    name: str, window: int | None
) -> None:
    """And whatever is computed beside it. Kernels for prompts do not compute single tokens."""
    kernel = attention_kernels(80).get(name)
    if kernel is None:
        pytest.skip("not on this machine")
    for_prompts = name in FOR_PROMPTS
    dtype = torch.float32 if name == "attend_f32" else torch.bfloat16
    shape = KVShape(1, 2, 80, dtype, CPU, windows=(window,))
    whole = iteration([(0, 300), (30, 1), (70, 33)], shape, 6, seed=2)
    attend = partial(RaggedAttention, pool=whole.pool, kernel=kernel)
    together = attend(whole.spans)(0, *whole[2:])
    start = 0
    for length in (2, 31, 40, 3, 2 if for_prompts else 1, 74, 148 if for_prompts else 149):
        part = Span(start, length, start, whole.spans[0].table)
        out = attend([part])(0, *whole[2:])
        assert torch.equal(out[start : start + length], together[start : start + length])
        start += length
    assert start == 300
    alone = attend([whole.spans[1]])(0, *whole[2:])
    assert torch.equal(alone[300], together[300])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 500])
def test_rows_of_one_sequence_compute_what_they_do_one_after_the_other_to_the_last_bit(
    head_dim: int, dtype: torch.dtype, window: int | None, threads: int
) -> None:
    """Drafts: rows at consecutive positions of one table, beside a decode and a prompt. By the
    kernel, and for 500 by torch's own operator."""
    shape = KVShape(1, 2, head_dim, dtype, CPU, windows=(window,))
    of = iteration([(37, 9), (70, 1), (5, 12)], shape, 6, seed=4)
    drafted = of.spans[0]
    rows = [Span(i, 1, drafted.start + i, drafted.table) for i in range(drafted.length)]
    other = KVPool(shape, of.pool.keys.shape[1])
    other.keys.copy_(of.pool.keys)
    other.values.copy_(of.pool.values)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = RaggedAttention([*rows, *of.spans[1:]], of.pool)(0, *of[2:])
        alone = [RaggedAttention([row], other)(0, *of[2:])[i] for i, row in enumerate(rows)]
        RaggedAttention(of.spans[1:], other)(0, *of[2:])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.stack(alone), together[: drafted.length])
    assert torch.equal(of.pool.keys.nan_to_num(99), other.keys.nan_to_num(99))
    assert torch.equal(of.pool.values.nan_to_num(99), other.values.nan_to_num(99))


def test_kernels_with_amx_are_absent_where_the_system_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = attention_kernels.__wrapped__
    monkeypatch.setattr("kernels._amx_allowed", lambda library: False)
    assert not [name for name in refused(64) if "amx" in name]
    assert refused(64).keys() == attention_kernels(64).keys() - {"attend_amx_bf16"}


@pytest.mark.parametrize("name", ["attend_bf16", *FOR_PROMPTS])
@given(
    rows, st.sampled_from([None, 1, 20]), st.sampled_from([16, 48, 64, 80]), st.integers(0, 2**31)
)
@settings(max_examples=15)
def test_every_kernel_of_this_machine_computes_bfloat16(name, lengths, window, head_dim, seed):  # type: ignore[no-untyped-def]
    if name not in attention_kernels(head_dim):
        pytest.skip("not on this machine")
    shape = KVShape(1, 2, head_dim, torch.bfloat16, CPU, windows=(window,))
    of = iteration(lengths, shape, 4, seed)
    if not len(of.q):
        return
    kernel = attention_kernels(head_dim)[name]
    attend = RaggedAttention(of.spans, of.pool, scale=0.2, kernel=kernel)
    check(attend(0, of.q, of.k, of.v), defined(of, 0, window, 0.2))


@pytest.mark.parametrize(("seconds", "chosen"), [(0.7, FOR_PROMPTS[0]), (0.8, "attend_bf16")])
def test_a_kernel_for_prompts_must_be_clearly_faster_and_the_choice_is_kept(
    seconds: float, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [[1.0, seconds]]
    monkeypatch.setattr("kernels.choice.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("runtime.attention._prompt_seconds", lambda head_dim, names: taken.pop())
    for _ in range(2):
        choice = fastest_for_prompts.__wrapped__(64, ("attend_bf16", FOR_PROMPTS[0]))
        assert choice == chosen
    assert not taken


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5), st.lists(st.booleans()), st.integers(0, 9)
)
def test_padding_does_not_reach_the_tokens_of_a_rectangle(lengths, done, seed) -> None:  # type: ignore[no-untyped-def]
    """A prefill and two decodes, in which the rows that are done are padding."""
    torch.manual_seed(seed)
    heads, dim, count = 2, 16, len(lengths)
    shape = KVShape(1, heads, dim, torch.float32, CPU)
    pool, alone = KVPool(shape, 2 + count), KVPool(shape, 2 + count)
    pool.keys.fill_(float("nan"))
    pool.values.fill_(float("nan"))
    pool.clear(slice(1, 1 + count))
    tables = [BlockTable([1 + row]) for row in range(count)]
    counts, starts = np.array(lengths), np.zeros(count, dtype=np.int64)
    goes_on = np.array([not (done + [False] * count)[row] for row in range(count)], dtype=np.int64)
    for width in (max(lengths), 1, 1):
        positions = ((starts + counts - width)[:, None] + np.arange(width)).clip(0)
        q, k, v = torch.randn(count * width, 3, heads, dim).unbind(1)
        out = RectangleAttention(pool, 1, 1, positions, counts)(0, q, k, v)
        assert out.isfinite().all()
        expected = torch.zeros_like(out)
        ends = [(row + 1) * width for row in range(count)]
        spans = [
            Span(end - n, int(n), int(start), table)
            for end, n, start, table in zip(ends, counts, starts, tables, strict=True)
            if n
        ]
        chunks = [Chunk(span, shape, None) for span in spans]
        attend_rows(chunks, alone, 0, q, k, v, expected, dim**-0.5)
        for span in spans:
            tokens = slice(span.first, span.first + span.length)
            assert torch.allclose(out[tokens], expected[tokens], atol=1e-6)
        starts, counts = starts + counts, goes_on
    for row, end in enumerate(starts):
        assert torch.equal(pool.keys[:, 1 + row, :end], alone.keys[:, 1 + row, :end])
        assert torch.equal(pool.values[:, 1 + row, :end], alone.values[:, 1 + row, :end])
