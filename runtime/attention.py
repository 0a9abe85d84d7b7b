"""Attention over cached keys and values: the only operation that distinguishes requests.

`RaggedAttention` serves rows of any length, each over its own blocks, by the compiled kernel for
CPUs. `TorchAttention` serves them on any device where the kernels cannot be used. Triton's are
called in `runtime/gpu/paged.py`.
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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kernels import ATTENTION_SOURCE, HEAD_DIMS, KEYS_TOGETHER, attention_kernels, identity
from kernels.choice import CLEARLY_FASTER, Choices, best_seconds, kept_choices
from models.gpt2 import Attend
from runtime.cache import BlockTable, KVPool, KVShape
from runtime.transfer import send

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
    kernels = attention_kernels(shape.head_dim)
    if shape.dtype == torch.bfloat16 and kernels:
        return kernels[fastest_for_prompts(shape.head_dim)]
    return kernels.get("attend_f32") if shape.dtype == torch.float32 else None


def attention_on_cpu(spans: Spans, pool: KVPool) -> Attend:
    """By the machine's kernel, or by torch."""
    kernel = attention_kernel(pool.shape)
    if kernel is None:
        return TorchAttention(spans, pool)
    return RaggedAttention(spans, pool, kernel)


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
        return self if there.all() else self.where(there)

    def where(self, chosen: NDArray[np.bool_]) -> Spans:
        tables = list(compress(self.tables, chosen.tolist()))
        return Spans(self.first[chosen], self.length[chosen], self.start[chosen], tables)


@dataclass(frozen=True, slots=True)
class Flat:
    """An iteration of `N` positions on one axis."""

    tokens: Sequence[int]  # [N]
    positions: Counts  # [N]
    spans: Spans
    ends: Counts  # where each step's known tokens end; its drafts follow


class RaggedAttention:
    """`attend` for a flat axis of tokens: q `[N, H, D]`, k and v `[N, kv_heads, D]`; tokens of no
    span give zeros."""

    def __init__(self, spans: Spans, pool: KVPool, kernel: AttentionKernel) -> None:
        self._pool, self._kernel = pool, kernel
        self._scale = 1 / math.sqrt(pool.shape.head_dim)
        spans = spans.present()
        # what the kernel reads of the rows: first, count, start, address of the blocks
        addresses = np.array([table.address for table in spans.tables], dtype=np.int64)
        self._alive = np.stack([spans.first, spans.length, spans.start, addresses])
        self._rows = len(spans.tables), *(ctypes.c_void_p(row.ctypes.data) for row in self._alive)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        window = self._pool.shape.windows[layer]
        count, *rows = self._rows
        self._kernel(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(),
            count, q.shape[1], k.shape[1], q.stride(0), k.stride(0), v.stride(0),
            *rows, *self._pool.addresses[layer], self._pool.shape.block_tokens,
            UNBOUNDED if window is None else window, self._scale,
        )  # fmt: skip
        return out


@functools.cache
def fastest_for_prompts(head_dim: int) -> str:
    """The plain kernel, or the fastest of the others, which round a prompt's weights to bfloat16.
    The last bits of their results differ from those of decoding rows, so they must be clearly
    faster."""
    kernels = attention_kernels(head_dim)
    plain, *others = names = [name for name in ("attend_bf16", *FOR_PROMPTS) if name in kernels]
    if not others:
        return plain

    def measured(keys: Sequence[str]) -> Choices:
        seconds = dict(zip(names, _prompt_seconds(head_dim, names), strict=True))
        fastest = min(others, key=lambda name: seconds[name])
        chosen = fastest if seconds[fastest] <= CLEARLY_FASTER * seconds[plain] else plain
        return dict.fromkeys(keys, chosen)

    key = f"heads of {head_dim}"
    depends_on = (identity(ATTENTION_SOURCE), tuple(names))
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
    spans = Spans.of([span])
    tried = [RaggedAttention(spans, pool, kernels[name]) for name in names]
    return best_seconds([partial(attend, 0, x, x, x) for attend in tried], TRIED_ROUNDS)


class TorchAttention:
    """`attend` by torch's operators: a call for the rows with one new token, one for the others,
    each padded to its own longest row, so that a long prompt does not widen every decode."""

    def __init__(self, spans: Spans, pool: KVPool) -> None:
        self._pool = pool
        parts = spans.where(spans.length == 1), spans.where(spans.length > 1)
        self._rectangles = [_Rectangle(part, pool.shape) for part in parts if len(part)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool = self._pool.slots(layer)  # [slots, kv_heads, D]
        for of in self._rectangles:  # all of them first: drafts attend to each other
            for stored, new in zip(pool, (k, v), strict=True):
                stored.index_copy_(0, of.written, new.index_select(0, of.flat))
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for of in self._rectangles:
            keys, values = (
                stored.index_select(0, of.slots).view(len(of.queries), -1, *k.shape[1:])
                for stored in pool
            )  # [R, L, kv_heads, D]
            mask = of.masks[self._pool.shape.windows[layer]]
            attended = F.scaled_dot_product_attention(
                q[of.queries].transpose(1, 2),  # [R, W, H, D] -> [R, H, W, D]
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            attended = attended.transpose(1, 2).flatten(0, 1)
            out.index_copy_(0, of.flat, attended.index_select(0, of.place))
        return out


class _Rectangle:
    """Rows with up to `W` new tokens and up to `L` in all. Where there is none, another one of the
    row stands."""

    def __init__(self, spans: Spans, shape: KVShape) -> None:
        first, count, start = (of[:, None] for of in (spans.first, spans.length, spans.start))
        tables = np.zeros((len(spans), max(table.count for table in spans.tables)), dtype=np.int64)
        for own, table in zip(tables, spans.tables, strict=True):
            own[: table.count] = table.blocks
        key = np.minimum(np.arange((start + count).max()), start + count - 1)
        slots = np.take_along_axis(tables, key // shape.block_tokens, 1) * shape.block_tokens
        slots += key % shape.block_tokens  # [R, L]
        column = np.arange(count.max())
        within, there = np.minimum(column, count - 1), column < count  # [R, W]
        queries, positions = first + within, start + within
        written = np.take_along_axis(slots, positions, 1)
        places = queries[there], written[there], np.flatnonzero(there)
        sent = send([queries, positions, slots.ravel(), *places], shape.device)
        self.queries, positions_there, self.slots, self.flat, self.written, self.place = sent
        at = positions_there[:, None, :, None]
        keys = torch.arange(key.shape[1], device=shape.device)
        seen = keys <= at
        # [R, 1, W, L], by window; where all begin, torch's own triangle is faster
        self.masks: dict[int | None, Tensor | None] = {None: seen if start.any() else None}
        for window in set(shape.windows):
            if window is not None:
                self.masks[window] = seen & (keys > at - window)


def places_of(counts: NDArray[Any]) -> tuple[Counts, Counts]:
    """For counts 2, 3: 0 0 1 1 1 and 0 1 0 1 2."""
    which = np.arange(len(counts)).repeat(counts)
    return which, np.arange(len(which)) - (counts.cumsum() - counts)[which]
