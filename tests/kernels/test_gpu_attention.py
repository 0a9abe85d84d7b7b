"""The Triton kernel computes what its plain-torch twin defines, interpreted on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.gpu.attention import attend
from kernels.gpu.paged import attend_rectangle, queries_per_tile
from runtime.attention import Span
from runtime.cache import BlockTable, KVShape
from runtime.gpu.comparison import Case, Heads
from runtime.gpu.paged import PagedAttention, sent_alone
from tests.kernels.conftest import DEVICE

pytestmark = pytest.mark.usefixtures("on_device")

BLOCK_TOKENS = 16
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def check(
    rows: list[tuple[int, int]],
    *,
    heads: int = 2,
    kv_heads: int = 2,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    seed: int = 0,
) -> None:
    """`rows`: of each, the tokens before and the new ones."""
    of = Heads(heads, kv_heads, dim, BLOCK_TOKENS, str(dtype).removeprefix("torch."), window)
    case = Case(rows, of, queries_per_tile(dtype, dim) // (heads // kv_heads), DEVICE, seed)
    results, keys, values = case.expected()
    actual = case.attended(PagedAttention)
    assert torch.equal(case.pool.keys[0].nan_to_num(), keys.nan_to_num())
    assert torch.equal(case.pool.values[0].nan_to_num(), values.nan_to_num())
    for span, expected in zip(case.spans, results, strict=True):
        difference = (actual[span.first : span.first + span.length] - expected).abs()
        assert difference.max() <= TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))


def test_one_launch_serves_prompts_chunks_and_decodes() -> None:
    check([(0, 5), (99, 1), (63, 1), (20, 37), (0, 1), (0, 70)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    check([(99, 1), (20, 37)], dtype=dtype)


def test_query_heads_share_kv_heads() -> None:
    check([(99, 1), (20, 37), (0, 70)], heads=6, kv_heads=2, dim=40)


def test_long_decodes_are_split_over_their_keys() -> None:
    check([(600, 1), (255, 1), (256, 1), (7, 9), (0, 1)])


@pytest.mark.parametrize("window", [20, 300])
def test_a_window_hides_what_is_older(window: int) -> None:
    check([(600, 1), (19, 1), (120, 40), (0, 70)], window=window)


shapes = st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 3, 8]))


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(1, 150)), min_size=1, max_size=4),
    st.lists(st.integers(0, 700), max_size=4),
    shapes,
    st.sampled_from([16, 40, 64, 128, 256]),
    st.sampled_from(list(TOLERANCE)),
    st.none() | st.integers(1, 400),
    st.integers(0, 2**32),
)
def test_any_mixture(prompts, decodes, shape, dim, dtype, window, seed) -> None:
    kv_heads, group = shape
    rows = [*prompts, *((start, 1) for start in decodes)]
    sizes = {"heads": kv_heads * group, "kv_heads": kv_heads, "dim": dim}
    check(rows, **sizes, dtype=dtype, window=window, seed=seed)


def laid_out(lengths: Sequence[int], tables: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Rows of so many keys and one new token, as `attend` takes them."""
    rows = zip(lengths, map(BlockTable, tables), strict=True)
    spans = [Span(i, 1, length - 1, table) for i, (length, table) in enumerate(rows)]
    shape = KVShape(1, 1, 16, torch.float32, torch.device("cpu"), BLOCK_TOKENS)
    of = sent_alone(np.zeros(len(spans), dtype=np.int64), spans, shape, 1)
    layout = {name: getattr(of, name) for name in ("rows", "tables", "tiles")}
    return {**layout, "singles": of.singles, "splits": of.splits}


def test_a_rows_result_does_not_depend_on_what_it_is_batched_with() -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 64, BLOCK_TOKENS, 2, 16)
    tables = torch.randperm(64).view(2, 32).tolist()
    qkv, lengths, slots = torch.randn(2, 6, 16), [200, 500], torch.full((2,), -1)

    def attended(rows: slice) -> Tensor:
        q, k, v = qkv[rows].split(2, 1)
        of = laid_out(lengths[rows], tables[rows])
        return attend(q, k, v, keys, values, slots[rows], **of)

    together = attended(slice(2))
    for row in (slice(1), slice(1, 2)):
        assert torch.equal(attended(row), together[row])


@pytest.mark.parametrize(
    ("past", "dtype", "heads", "window"),
    [
        (20, torch.float32, 2, None),
        (253, torch.float32, 6, None),  # the keys of some are split
        (600, torch.float32, 2, 300),
        (20, torch.bfloat16, 2, None),
    ],
)
def test_drafts_beside_each_other_give_what_they_give_one_by_one_to_the_last_bit(
    past: int, dtype: torch.dtype, heads: int, window: int | None
) -> None:
    """The last is computed first: it reads what the others store."""
    torch.manual_seed(0)
    count, kv_heads, dim = 5, 2, 16
    blocks = -(-(past + count) // BLOCK_TOKENS)
    pools = torch.full((2, blocks, BLOCK_TOKENS, kv_heads, dim), torch.nan, dtype=dtype)
    table = torch.randperm(blocks).int()
    n = torch.arange(past + count)
    slots = table[n // BLOCK_TOKENS].long() * BLOCK_TOKENS + n % BLOCK_TOKENS
    pools.flatten(1, 2)[:, slots[:past]] = torch.randn(2, past, kv_heads, dim).to(dtype)
    qkv = torch.randn(count, heads + 2 * kv_heads, dim).to(dtype)

    def run(tokens: list[int], pool: Tensor) -> Tensor:
        q, k, v = qkv[tokens].split([heads, kv_heads, kv_heads], 1)
        of = laid_out([past + n + 1 for n in tokens], [table.tolist()] * len(tokens))
        shared, own = len(tokens) > 1, slots[past:][tokens]
        return attend(q, k, v, pool[0], pool[1], own, window=window, shared=shared, **of)

    alone, together = pools.clone(), pools.clone()
    expected = torch.cat([run([token], alone) for token in range(count)])
    assert torch.equal(run(list(reversed(range(count))), together).flip(0), expected)
    assert torch.equal(together.nan_to_num(), alone.nan_to_num())


def test_the_twin_is_plain_attention() -> None:
    """Against a softmax in float64, written out."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 5, BLOCK_TOKENS, 2, 16)
    tables = torch.tensor([[3, 1], [0, 4]])
    q, window = torch.randn(2, 3, 4, 16), 9
    positions = torch.tensor([[20, 21, 22], [-1, 0, 1]])
    actual = attend_rectangle(q, keys, values, tables, positions, window)
    for r in range(2):
        for w in range(3):
            end = int(positions[r, w]) + 1
            seen = slice(max(0, end - window), end)
            for head in range(4):
                k = keys[tables[r]].flatten(0, 1)[seen, head // 2].double()
                v = values[tables[r]].flatten(0, 1)[seen, head // 2].double()
                expected = (k @ q[r, w, head].double() / 4).softmax(0) @ v
                assert torch.allclose(actual[r, w, head].double(), expected, atol=1e-6)
