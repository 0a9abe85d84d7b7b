"""Triton kernels of paged attention; `attend_rectangle` in `paged.py` defines what they compute.

One launch serves a mixed batch. The grid is tiles of queries x KV heads x splits of the keys. A
tile is one row's single new token or a piece of a row's prompt, and contains the query heads that
share a KV head. Rows with one new token are split over their keys, in pieces of fixed size, so that
neither a long context nor a small batch leaves the device idle; a second launch merges the pieces.
The arithmetic of a row does not depend on other rows.

Softmax in one pass: Dao et al., "FlashAttention", 2022, section 3; splits over the keys: "Flash-
Decoding", Dao et al., 2023.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
SPLIT_KEYS = 256  # of a row with a single new token, read by one program
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# the interpreter keeps bfloat16 as integers, and multiplies those in tl.dot
WIDEN = tl.constexpr(INTERPRETED)


@triton.jit
def _store(k, v, keys, values, slots, k_stride, v_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One new token's keys and values, `SIZE` numbers each, to their slot; below 0 to none."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    if slot >= 0:
        key = tl.load(k + token * k_stride + at, mask=inside)
        value = tl.load(v + token * v_stride + at, mask=inside)
        tl.store(keys + slot * SIZE + at, key, mask=inside)
        tl.store(values + slot * SIZE + at, value, mask=inside)


@triton.jit
def _some(total):
    return tl.where(total > 0, total, 1.0)  # a tile's unused queries have a sum of 0


@triton.jit
def _scan(
    q, keys, values, table, first, count, length, offset, head, low, high, q_stride, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The unnormalised softmax of M queries over keys `low` to `high`, with its maxima and sums."""
    m = tl.arange(0, M)
    d = tl.arange(0, PADDED)
    token = offset + m // GROUP
    position = length - count + token
    asked = token < count
    at = (first + token).to(tl.int64) * q_stride + (head * GROUP + m % GROUP) * DIM
    query = tl.load(q + at[:, None] + d[None, :], mask=asked[:, None] & (d < DIM)[None, :], other=0)
    if WIDEN:
        query = query.to(tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, PADDED], tl.float32)
    for start in range(low, high, N):
        n = start + tl.arange(0, N)
        inside = n < high
        block = tl.load(table + n // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
        key_at = ((block * BLOCK_TOKENS + n % BLOCK_TOKENS) * KV_HEADS + head) * DIM
        loaded = inside[:, None] & (d < DIM)[None, :]
        key = tl.load(keys + key_at[:, None] + d[None, :], mask=loaded, other=0)
        value = tl.load(values + key_at[:, None] + d[None, :], mask=loaded, other=0)
        if WIDEN:
            key, value = key.to(tl.float32), value.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        seen = inside[None, :] & (n[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (n[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # before the first visible key
        weights = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        top = higher
    return mixed, top, total


@triton.jit(do_not_specialize=["q_stride", "table_stride", "singles", "splits"])
def _attend(
    q, keys, values, out, parts, sums, rows, tables, tiles,
    q_stride, table_stride, singles, splits, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
    M_SINGLE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, offset = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    first, count = tl.load(rows + 3 * row), tl.load(rows + 3 * row + 1)
    length = tl.load(rows + 3 * row + 2)
    table = tables + row.to(tl.int64) * table_stride
    d = tl.arange(0, PADDED)
    if tile < singles:
        low, high = split * SPLIT, tl.minimum(length, split * SPLIT + SPLIT)
        if WINDOW > 0:
            low = tl.maximum(low, (length - WINDOW) // N * N)
        if low < high:
            mixed, top, total = _scan(
                q, keys, values, table, first, count, length, offset, head, low, high,
                q_stride, scale,
                GROUP, KV_HEADS, DIM, PADDED, BLOCK_TOKENS, WINDOW, M_SINGLE, N,
            )  # fmt: skip
            g = tl.arange(0, M_SINGLE)
            kept = (g < GROUP)[:, None] & (d < DIM)[None, :]
            query_head = (head * GROUP + g).to(tl.int64)
            if splits > 1:
                part = (tile * KV_HEADS * GROUP + query_head) * splits + split
                tl.store(parts + part[:, None] * DIM + d[None, :], mixed, mask=kept)
                tl.store(sums + part * 2, top, mask=g < GROUP)
                tl.store(sums + part * 2 + 1, total, mask=g < GROUP)
            else:
                at = (first.to(tl.int64) * KV_HEADS * GROUP + query_head) * DIM
                result = (mixed / _some(total)[:, None]).to(out.dtype.element_ty)
                tl.store(out + at[:, None] + d[None, :], result, mask=kept)
    elif split == 0:
        after = tl.minimum(count, offset + M // GROUP)  # the row's token after the tile
        high = length - count + after
        low = 0
        if WINDOW > 0:
            low = tl.maximum(0, (length - count + offset + 1 - WINDOW) // N * N)
        mixed, _, total = _scan(
            q, keys, values, table, first, count, length, offset, head, low, high, q_stride, scale,
            GROUP, KV_HEADS, DIM, PADDED, BLOCK_TOKENS, WINDOW, M, N,
        )  # fmt: skip
        m = tl.arange(0, M)
        token = offset + m // GROUP
        used = (token < after) & (m < M // GROUP * GROUP)
        at = ((first + token).to(tl.int64) * KV_HEADS * GROUP + head * GROUP + m % GROUP) * DIM
        result = (mixed / _some(total)[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] + d[None, :], result, mask=used[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=["splits"])
def _merge(
    parts, sums, out, rows, tiles, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    WINDOW: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Merges the pieces of one row and query head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(tiles + 2 * tile)
    first, length = tl.load(rows + 3 * row), tl.load(rows + 3 * row + 2)
    d = tl.arange(0, PADDED)
    top = float("-inf")
    total = 0.0
    mixed = tl.zeros([PADDED], tl.float32)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(0, length - WINDOW) // SPLIT
    for split in range(low, (length + SPLIT - 1) // SPLIT):
        part = (tile.to(tl.int64) * HEADS + head) * splits + split
        its_top = tl.load(sums + part * 2)
        higher = tl.maximum(top, its_top)
        shrink, grow = tl.exp2(top - higher), tl.exp2(its_top - higher)
        total = total * shrink + tl.load(sums + part * 2 + 1) * grow
        mixed = mixed * shrink + tl.load(parts + part * DIM + d, mask=d < DIM, other=0) * grow
        top = higher
    at = (first.to(tl.int64) * HEADS + head) * DIM
    if length > 0:
        tl.store(out + at + d, (mixed / total).to(out.dtype.element_ty), mask=d < DIM)


def queries_per_tile(dtype: torch.dtype, head_dim: int) -> int:
    """Of a prompt, counted in query heads that share a KV head; as many keys are read at once.
    Larger tiles of float32 do not fit into every GPU's shared memory, and compile for ten seconds.
    """
    if dtype.itemsize == 2:
        return 64 if head_dim <= 128 else 32
    return 32 if head_dim <= 128 else 16


def _launch_store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    size = k.shape[1] * k.shape[2]
    _store[(len(k),)](
        k, v, keys, values, slots, k.stride(0), v.stride(0), size, triton.next_power_of_2(size)
    )


def _launch_attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    tables: Tensor,
    tiles: Tensor,
    singles: int,
    longest: int,
    window: int | None,
) -> Tensor:
    _, heads, dim = q.shape
    _, block_tokens, kv_heads, _ = keys.shape
    group = heads // kv_heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    splits = max(1, triton.cdiv(longest, SPLIT_KEYS)) if singles else 1
    held = (singles, heads, splits) if splits > 1 else (0,)
    parts = torch.empty((*held, dim), dtype=torch.float32, device=q.device)
    sums = torch.empty((*held, 2), dtype=torch.float32, device=q.device)
    padded = max(16, triton.next_power_of_2(dim))
    size = queries_per_tile(q.dtype, dim)
    _attend[(len(tiles), kv_heads, splits)](
        q, keys, values, out, parts, sums, rows, tables, tiles,
        q.stride(0), tables.stride(0), singles, splits, LOG2_E / dim**0.5,
        group, kv_heads, dim, padded, block_tokens, window or 0, SPLIT_KEYS,
        max(16, triton.next_power_of_2(group)), size, size, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        _merge[(singles, heads)](
            parts, sums, out, rows, tiles, splits, heads, dim, padded, window or 0, SPLIT_KEYS
        )
    return out


# registered with torch, so that profilers and CUDA graphs see them
_operators = torch.library.Library("effective_batching", "DEF")
_operators.define(
    "store(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor slots) -> ()"
)
_operators.define(
    "attend(Tensor q, Tensor keys, Tensor values, Tensor rows, Tensor tables, Tensor tiles, "
    "int singles, int longest, int? window) -> Tensor"
)
_operators.impl("store", _launch_store, "CompositeExplicitAutograd")
_operators.impl("attend", _launch_attend, "CompositeExplicitAutograd")


def store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Writes k, v `[N, kv_heads, D]` to their slots `[N]` of the pool; slots below 0 are
    skipped."""
    torch.ops.effective_batching.store(k, v, keys, values, slots)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    tables: Tensor,
    tiles: Tensor,
    singles: int,
    longest: int,
    window: int | None = None,
) -> Tensor:
    """q `[N, H, D]` -> `[N, H, D]`; results for tokens of no row are meaningless.

    int32: rows `[R, 3]`, each the flat index of its first token, its tokens, and its keys, the new
    ones included; tables `[R, blocks]`; tiles `[T, 2]`, each a row and the first of its tokens that
    are the tile's. Rows of a single token come first: `singles` of them, over at most `longest`
    keys. The others have tiles of `queries_per_tile` over the query heads that share a KV head.
    """
    result: Tensor = torch.ops.effective_batching.attend(
        q, keys, values, rows, tables, tiles, singles, longest, window
    )
    return result
