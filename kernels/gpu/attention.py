"""Triton kernels of paged attention; `attend_rectangle` in `paged.py` defines what they compute.

One call serves a mixed batch. Rows with a single new token have a kernel of their own, which needs
few registers: its grid is splits x KV heads, so that neither a long context nor a small batch
leaves the device idle, and it stores the new key and value itself. A row has as many splits as its
keys need, and a second launch merges them. For the other rows one launch stores keys and values,
and one attends: its grid is tiles x KV heads, a tile being a piece of a row's prompt and the query
heads that share a KV head. Where several rows are tokens of one sequence, its newest and drafts
behind it, the launch that stores comes first, too. The arithmetic of a row, its splits included,
does not depend on other rows.

Softmax in one pass: Dao et al., "FlashAttention", 2022, section 3; splits over the keys: "Flash-
Decoding", Dao et al., 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.operators import INTERPRETED, operator
from kernels.gpu.paged import MOST_SPLITS, SPLIT_KEYS, queries_per_tile

LOG2_E = 1.4426950408889634
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
def _piece(length, SPLIT: tl.constexpr, MOST: tl.constexpr, N: tl.constexpr):
    """The keys that one program reads, by the row's own length alone."""
    return tl.maximum(SPLIT, tl.cdiv(length, MOST * N) * N)


@triton.jit
def _mix(query, key, value, seen, mixed, top, total, scale):
    """One step of the softmax of M queries over N more keys."""
    if WIDEN:
        key, value = key.to(tl.float32), value.to(tl.float32)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    finite = tl.where(higher == float("-inf"), 0.0, higher)  # before the first visible key
    weights = tl.exp2(scores - finite[:, None])
    shrink = tl.exp2(top - finite)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    mixed += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return mixed, higher, total


@triton.jit(do_not_specialize=["singles"])
def _attend(
    q, keys, values, out, rows, tables, tiles, q_stride, singles, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One tile of a prompt and one KV head. Its keys are in the pool."""
    tile, head = singles + tl.program_id(0), tl.program_id(1)
    row, offset = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    first, count = tl.load(rows + 5 * row), tl.load(rows + 5 * row + 1)
    length = tl.load(rows + 5 * row + 2)
    table = tables + tl.load(rows + 5 * row + 3)
    d = tl.arange(0, PADDED)
    m = tl.arange(0, M)
    token = offset + m // GROUP
    position = length - count + token
    used = (token < count) & (m < M // GROUP * GROUP)
    at = (first + token).to(tl.int64) * q_stride + (head * GROUP + m % GROUP) * DIM
    query = tl.load(q + at[:, None] + d[None, :], mask=used[:, None] & (d < DIM)[None, :], other=0)
    if WIDEN:
        query = query.to(tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, PADDED], tl.float32)
    low, high = 0, length - count + tl.minimum(count, offset + M // GROUP)
    if WINDOW > 0:
        low = tl.maximum(0, (length - count + offset + 1 - WINDOW) // N * N)
    for start in range(low, high, N):
        n = start + tl.arange(0, N)
        inside = n < high
        block = tl.load(table + n // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
        key_at = ((block * BLOCK_TOKENS + n % BLOCK_TOKENS) * KV_HEADS + head) * DIM
        loaded = inside[:, None] & (d < DIM)[None, :]
        key = tl.load(keys + key_at[:, None] + d[None, :], mask=loaded, other=0)
        value = tl.load(values + key_at[:, None] + d[None, :], mask=loaded, other=0)
        seen = inside[None, :] & (n[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (n[None, :] > position[:, None] - WINDOW)
        mixed, top, total = _mix(query, key, value, seen, mixed, top, total, scale)
    at = ((first + token).to(tl.int64) * KV_HEADS * GROUP + head * GROUP + m % GROUP) * DIM
    result = (mixed / _some(total)[:, None]).to(out.dtype.element_ty)
    tl.store(out + at[:, None] + d[None, :], result, mask=used[:, None] & (d < DIM)[None, :])


@triton.jit
def _decode(
    q, k, v, keys, values, slots, out, parts, sums, rows, tables, tiles,
    q_stride, k_stride, v_stride, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, MOST: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A row's only new token, one KV head and one piece of the keys. The last piece also stores
    the token's own key and value, which it reads from `k` and `v`."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row, split = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    first, length = tl.load(rows + 5 * row).to(tl.int64), tl.load(rows + 5 * row + 2)
    table = tables + tl.load(rows + 5 * row + 3)
    piece = _piece(length, SPLIT, MOST, N)
    low, high = split * piece, tl.minimum(length, split * piece + piece)
    if WINDOW > 0:
        low = tl.maximum(low, (length - WINDOW) // N * N)
    if low < high:
        m, d = tl.arange(0, M), tl.arange(0, PADDED)
        grouped, wide = m < GROUP, d < DIM
        at = first * q_stride + (head * GROUP + m) * DIM
        kept = grouped[:, None] & wide[None, :]
        query = tl.load(q + at[:, None] + d[None, :], mask=kept, other=0)
        if WIDEN:
            query = query.to(tl.float32)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, PADDED], tl.float32)
        older = tl.minimum(high, length - 1)
        for start in range(low, older, N):
            n = start + tl.arange(0, N)
            seen = n < older
            if WINDOW > 0:
                seen = seen & (n >= length - WINDOW)
            block = tl.load(table + n // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
            key_at = ((block * BLOCK_TOKENS + n % BLOCK_TOKENS) * KV_HEADS + head) * DIM
            loaded = seen[:, None] & wide[None, :]
            key = tl.load(keys + key_at[:, None] + d[None, :], mask=loaded, other=0)
            value = tl.load(values + key_at[:, None] + d[None, :], mask=loaded, other=0)
            mixed, top, total = _mix(query, key, value, seen[None, :], mixed, top, total, scale)
        if high == length:
            new_key = tl.load(k + first * k_stride + head * DIM + d, mask=wide, other=0)
            new_value = tl.load(v + first * v_stride + head * DIM + d, mask=wide, other=0)
            slot = tl.load(slots + first)
            if slot >= 0:
                own = (slot * KV_HEADS + head) * DIM + d
                tl.store(keys + own, new_key, mask=wide)
                tl.store(values + own, new_value, mask=wide)
            score = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale
            higher = tl.maximum(top, score)
            weight, shrink = tl.exp2(score - higher), tl.exp2(top - higher)
            total = total * shrink + weight
            mixed = mixed * shrink[:, None] + weight[:, None] * new_value.to(tl.float32)[None, :]
            top = higher
        query_head = head * GROUP + m
        if length > piece:
            part = tile.to(tl.int64) * KV_HEADS * GROUP + query_head
            tl.store(parts + part[:, None] * DIM + d[None, :], mixed, mask=kept)
            tl.store(sums + part * 2, top, mask=grouped)
            tl.store(sums + part * 2 + 1, total, mask=grouped)
        else:
            at = (first * KV_HEADS * GROUP + query_head) * DIM
            result = (mixed / total[:, None]).to(out.dtype.element_ty)
            tl.store(out + at[:, None] + d[None, :], result, mask=kept)


@triton.jit
def _merge(
    parts, sums, out, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    WINDOW: tl.constexpr, SPLIT: tl.constexpr, MOST: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Merges the pieces of one row and query head."""
    row, head = tl.program_id(0), tl.program_id(1)
    count, length = tl.load(rows + 5 * row + 1), tl.load(rows + 5 * row + 2)
    piece = _piece(length, SPLIT, MOST, N)
    if (count == 1) & (length > piece):
        tile = tl.load(rows + 5 * row + 4).to(tl.int64)
        d = tl.arange(0, PADDED)
        top, total = float("-inf"), 0.0
        mixed = tl.zeros([PADDED], tl.float32)
        low = 0
        if WINDOW > 0:
            low = tl.maximum(0, length - WINDOW) // piece
        for split in range(low, tl.cdiv(length, piece)):
            part = (tile + split) * HEADS + head
            its_top = tl.load(sums + part * 2)
            higher = tl.maximum(top, its_top)
            shrink, grow = tl.exp2(top - higher), tl.exp2(its_top - higher)
            total = total * shrink + tl.load(sums + part * 2 + 1) * grow
            mixed = mixed * shrink + tl.load(parts + part * DIM + d, mask=d < DIM, other=0) * grow
            top = higher
        at = (tl.load(rows + 5 * row).to(tl.int64) * HEADS + head) * DIM
        tl.store(out + at + d, (mixed / total).to(out.dtype.element_ty), mask=d < DIM)


def _keys_at_once(dtype: torch.dtype, padded: int, queries: int) -> int:
    """As many as need no more registers than a thread has, on all targets that
    `benchmarks.kernels.compiled` knows."""
    if dtype.itemsize == 2:
        return {16: 64, 32: 64, 64: 64, 128: 64 if queries <= 32 else 32}.get(padded, 32)
    return {16: 64, 32: 64, 64: 64 if queries <= 16 else 32}.get(padded, 16)


class Launch(NamedTuple):
    """How the kernel for rows with a single new token runs. Results of two of these differ in
    their last bits, so a process uses one."""

    warps: int = 4
    stages: int = 2


# the default first; all of them fit into the GPUs that `benchmarks.kernels.compiled` knows
CANDIDATES = (Launch(), Launch(4, 3), Launch(8, 2))


# int32: rows `[R, 5]`, each the flat index of its first token, its tokens, its keys, the new ones
# included, where its blocks begin in `tables`, and the first of its tiles if it has a single
# token; tiles `[T, 2]`, each a row and a number. Tiles of rows of a single token come first,
# `singles` of them: one for each `SPLIT_KEYS` keys, up to `MOST_SPLITS`, numbered from 0; with
# `splits`, some rows have several. Others have tiles of `queries_per_tile` over the query heads
# that share a KV head; the number is that of the first token. A tile of a row without tokens and
# keys computes nothing. `shared`: some rows are tokens of the same sequence, so that one reads
# what another stores.
@operator(
    lambda q, *_, **__: torch.empty(q.shape, dtype=q.dtype, device=q.device),
    changes=("keys", "values"),
)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    rows: Tensor,
    tables: Tensor,
    tiles: Tensor,
    singles: int,
    splits: bool,
    window: int | None = None,
    warps: int = 4,
    stages: int = 2,
    shared: bool = False,
) -> Tensor:
    """q `[N, H, D]` -> `[N, H, D]`; results for tokens of no row are meaningless. k, v
    `[N, kv_heads, D]` are written to their slots `[N]` of the pool, and slots below 0 to none.
    The other numbers: see above. `warps`, `stages`: of a `Launch`.
    """
    tokens, heads, dim = q.shape
    _, block_tokens, kv_heads, _ = keys.shape
    group = heads // kv_heads
    padded = max(16, triton.next_power_of_2(dim))
    # what no row writes goes through the network, too: the interpreter would warn of its sums
    out = (torch.zeros if INTERPRETED else torch.empty)(q.shape, dtype=q.dtype, device=q.device)
    scale = LOG2_E / dim**0.5
    if shared or len(tiles) > singles:
        size = kv_heads * dim
        _store[(tokens,)](
            k, v, keys, values, slots, k.stride(0), v.stride(0), size, triton.next_power_of_2(size)
        )
    if len(tiles) > singles:
        queries = queries_per_tile(q.dtype, dim)
        _attend[(len(tiles) - singles, kv_heads)](
            q, keys, values, out, rows, tables, tiles, q.stride(0), singles, scale,
            group, kv_heads, dim, padded, block_tokens, window or 0,
            queries, _keys_at_once(q.dtype, padded, queries), num_stages=2,
        )  # fmt: skip
    if singles:
        held = (singles, heads) if splits else (0,)
        parts = torch.empty((*held, dim), dtype=torch.float32, device=q.device)
        sums = torch.empty((*held, 2), dtype=torch.float32, device=q.device)
        queries = max(16, triton.next_power_of_2(group))
        together = _keys_at_once(q.dtype, padded, queries)
        _decode[(singles, kv_heads)](
            q, k, v, keys, values, slots, out, parts, sums, rows, tables, tiles,
            q.stride(0), k.stride(0), v.stride(0), scale,
            group, kv_heads, dim, padded, block_tokens, window or 0, SPLIT_KEYS, MOST_SPLITS,
            queries, together, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        if splits:
            _merge[(len(rows), heads)](
                parts, sums, out, rows,
                heads, dim, padded, window or 0, SPLIT_KEYS, MOST_SPLITS, together,
            )  # fmt: skip
    return out
