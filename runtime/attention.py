"""Attention over cached keys and values: the only operation that distinguishes requests.

`RaggedAttention` serves rows of any length, each over its own blocks: the compiled kernel on a CPU,
or, row by row, torch's own operator, which also defines what is computed (`attend_rows`).
`RectangleAttention` serves a padded batch in one masked call, on a CPU without a compiler. On a GPU
neither is used (`runtime/gpu/paged.py`).
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kernels import ATTENTION_SOURCE, HEAD_DIMS, KEYS_TOGETHER, attention_kernels, identity
from kernels.choice import CLEARLY_FASTER, Choices, best_seconds, kept_choices
from models.gpt2 import Attend
from runtime.cache import BlockTable, KVPool, KVShape

log = logging.getLogger(__name__)

Counts = NDArray[np.int64]
AttentionKernel = Callable[..., None]
UNBOUNDED = 2**62  # as a window
FOR_PROMPTS = ("attend_dot_bf16", "attend_amx_bf16")
TRIED_TOKENS, TRIED_HEADS, TRIED_ROUNDS = 256, 4, 5  # of the prompt that kernels compute in turn


def attention_kernel(shape: KVShape) -> AttentionKernel | None:
    """The compiled kernel for such a pool; None where torch's operators are used."""
    if (
        shape.device.type != "cpu"
        or shape.head_dim not in HEAD_DIMS
        or shape.block_tokens % KEYS_TOGETHER
    ):
        return None
    if shape.dtype == torch.bfloat16:
        return _bfloat16_kernel(shape.head_dim)
    if shape.dtype == torch.float32:
        return attention_kernels(shape.head_dim).get("attend_f32")
    return None


class Span(NamedTuple):
    """One row's tokens on the iteration's flat axis, and where its sequence is stored."""

    first: int
    length: int
    start: int  # tokens already in the pool
    table: BlockTable


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of an iteration, column by column, which takes less time than to make a `Span` of
    each row."""

    first: Counts
    length: Counts
    start: Counts
    tables: Sequence[BlockTable]

    @classmethod
    def of(cls, spans: Spans | Sequence[Span]) -> Spans:
        if isinstance(spans, Spans):
            return spans
        numbers = np.array([span[:3] for span in spans], dtype=np.int64).reshape(-1, 3)
        first, length, start = numbers.T
        return cls(first, length, start, [span.table for span in spans])

    def __len__(self) -> int:
        return len(self.tables)

    def __iter__(self) -> Iterator[Span]:
        numbers = (self.first.tolist(), self.length.tolist(), self.start.tolist())
        return map(Span, *numbers, self.tables)

    def present(self) -> Spans:
        """Those with new tokens."""
        there = self.length > 0
        if there.all():
            return self
        tables = list(compress(self.tables, there.tolist()))
        return Spans(self.first[there], self.length[there], self.start[there], tables)


@dataclass(frozen=True, slots=True)
class Flat:
    """An iteration of `N` positions on one axis."""

    tokens: Sequence[int]  # [N]
    positions: Counts  # [N]
    spans: Spans
    ends: Counts  # where each step's known tokens end; its drafts follow
    attend: Attend | None = None  # None: the default of the device


class RaggedAttention:
    """`attend` for a flat axis of tokens: q `[N, H, D]`, k and v `[N, kv_heads, D]`; tokens of no
    span give zeros. `scale`: of the scores; None: 1 / sqrt(D). `kernel`: default: the machine's."""

    def __init__(
        self,
        spans: Spans | Sequence[Span],
        pool: KVPool,
        *,
        scale: float | None = None,
        kernel: AttentionKernel | None = None,
    ) -> None:
        self._pool = pool
        self._scale = 1 / math.sqrt(pool.shape.head_dim) if scale is None else scale
        self._kernel = kernel or attention_kernel(pool.shape)
        spans = Spans.of(spans).present()
        if self._kernel is None:
            windows = set(pool.shape.windows)
            self._chunks = {
                window: [Chunk(span, pool.shape, window) for span in spans] for window in windows
            }
            return
        # what the kernel reads of the rows: first, count, start, address of the blocks
        addresses = np.array([table.address for table in spans.tables], dtype=np.int64)
        self._alive = np.stack([spans.first, spans.length, spans.start, addresses])
        self._rows = len(spans.tables), *(ctypes.c_void_p(row.ctypes.data) for row in self._alive)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        window = self._pool.shape.windows[layer]
        if self._kernel is None:
            attend_rows(self._chunks[window], self._pool, layer, q, k, v, out, self._scale)
            return out
        count, *rows = self._rows
        self._kernel(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(),
            count, q.shape[1], k.shape[1], q.stride(0), k.stride(0), v.stride(0),
            *rows, *self._pool.addresses[layer], self._pool.shape.block_tokens,
            UNBOUNDED if window is None else window, self._scale,
        )  # fmt: skip
        return out


def _bfloat16_kernel(head_dim: int) -> AttentionKernel | None:
    kernels = attention_kernels(head_dim)
    names = tuple(name for name in ("attend_bf16", *FOR_PROMPTS) if name in kernels)
    return kernels[fastest_for_prompts(head_dim, names)] if names else None


@functools.cache
def fastest_for_prompts(head_dim: int, names: Sequence[str]) -> str:
    """The first kernel, or the fastest of the others, which round a prompt's weights to bfloat16.
    The last bits of their results differ from those of decoding rows, so they must be clearly
    faster."""
    plain, *others = names
    if not others:
        return plain

    def measured(keys: Sequence[str]) -> Choices:
        seconds = dict(zip(names, _prompt_seconds(head_dim, names), strict=True))
        fastest = min(others, key=lambda name: seconds[name])
        chosen = fastest if seconds[fastest] <= CLEARLY_FASTER * seconds[plain] else plain
        return dict.fromkeys(keys, chosen)

    key = f"heads of {head_dim}"
    depends_on = (identity(ATTENTION_SOURCE), names)
    chosen = kept_choices("attention", lambda: depends_on, [key], names, measured)[key]
    log.info("prompts in bfloat16 by %s", chosen)
    return chosen


def _prompt_seconds(head_dim: int, names: Sequence[str]) -> list[float]:
    """CPU time of a prompt by each kernel."""
    blocks = TRIED_TOKENS // KEYS_TOGETHER
    cpu = torch.device("cpu")
    pool = KVPool(KVShape(1, TRIED_HEADS, head_dim, torch.bfloat16, cpu, KEYS_TOGETHER), blocks)
    span = Span(0, TRIED_TOKENS, 0, BlockTable(list(range(blocks))))
    x = torch.linspace(-1, 1, TRIED_TOKENS * TRIED_HEADS * head_dim).bfloat16()
    x = x.view(TRIED_TOKENS, TRIED_HEADS, head_dim)
    kernels = attention_kernels(head_dim)
    tried = [RaggedAttention([span], pool, kernel=kernels[name]) for name in names]
    return best_seconds([partial(attend, 0, x, x, x) for attend in tried], TRIED_ROUNDS)


class Chunk:
    """A span as torch's operators take it; the same in every layer."""

    def __init__(self, span: Span, shape: KVShape, window: int | None) -> None:
        self.new = slice(span.first, span.first + span.length)
        end = span.start + span.length
        slots = torch.from_numpy(span.table.slots(0, end, shape.block_tokens)).to(shape.device)
        self.past, self.written = slots[: span.start], slots[span.start :]
        self.mask: Tensor | None = None
        # is_causal aligns the triangle to the first key; over a past it is needed at the last
        self.is_causal = span.start == 0 and window is None
        if not self.is_causal:
            ones = torch.ones(span.length, end, dtype=torch.bool, device=shape.device)
            self.mask = ones.tril(span.start)
            if window is not None:
                self.mask = self.mask.triu(span.start - window + 1)


def attend_rows(
    chunks: Sequence[Chunk],
    pool: KVPool,
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    scale: float,
) -> None:
    """Writes each chunk's new keys and values to its slots; a query attends to all positions up to
    its own."""
    keys_of, values_of = pool.slots(layer)  # [slots, kv_heads, D]
    for chunk in chunks:
        keys, values = k[chunk.new], v[chunk.new]  # [n, kv_heads, D]
        keys_of.index_copy_(0, chunk.written, keys)
        values_of.index_copy_(0, chunk.written, values)
        if len(chunk.past):
            keys = torch.cat([keys_of.index_select(0, chunk.past), keys])
            values = torch.cat([values_of.index_select(0, chunk.past), values])
        attended = F.scaled_dot_product_attention(
            q[chunk.new].transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=chunk.mask,
            is_causal=chunk.is_causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # [1, H, n, D]
        out[chunk.new] = attended[0].transpose(0, 1)


class RectangleAttention:
    """`attend` for a rectangle of rows with as many new columns each, flattened to `[R * W]`.

    Row r is stored in `row_blocks` blocks from `first_block + r * row_blocks` on. `positions`
    `[R, W]` are within the row; its last `counts[r]` columns are tokens, the others padding.
    Results for padding are finite and meaningless."""

    def __init__(
        self, pool: KVPool, first_block: int, row_blocks: int, positions: Counts, counts: Counts
    ) -> None:
        rows, width = positions.shape
        device = pool.shape.device
        self._pool = pool
        self._blocks = slice(first_block, first_block + rows * row_blocks)
        self._end = int(positions.max()) + 1
        at = torch.from_numpy(positions).to(device)[:, :, None]
        column = torch.arange(self._end, device=device)
        seen = (column <= at)[:, None]
        self._masks: dict[int | None, Tensor] = {None: seen}  # [R, 1, W, end], by window
        for window in pool.shape.windows:
            if window is not None and window not in self._masks:
                self._masks[window] = seen & (column > at - window)[:, None]
        row, place = np.nonzero(np.arange(width) >= width - counts[:, None])
        # of the tokens: their places on the flat axis, and their rows and columns in the cache
        indices = np.stack([row * width + place, row, positions[row, place]])
        self._flat, self._row, self._column = torch.from_numpy(indices).to(device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = self._masks[self._pool.shape.windows[layer]]
        rows = len(mask)
        head = k.shape[1:]
        keys = self._pool.keys[layer, self._blocks].view(rows, -1, *head)  # [R, capacity, H, D]
        values = self._pool.values[layer, self._blocks].view(rows, -1, *head)
        keys[self._row, self._column] = k[self._flat]
        values[self._row, self._column] = v[self._flat]
        attended = F.scaled_dot_product_attention(
            q.view(rows, -1, *q.shape[1:]).transpose(1, 2),  # [R * W, H, D] -> [R, H, W, D]
            keys[:, : self._end].transpose(1, 2),
            values[:, : self._end].transpose(1, 2),
            attn_mask=mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return attended.transpose(1, 2).flatten(0, 1)
