"""Attention over cached keys and values: the one operation that must know whose token is whose.

`RaggedAttention` serves rows of any length, each over its own past: the compiled kernel on a CPU,
or, row by row, torch's own operator, which also defines what is computed (`attend_rows`).
`RectangleAttention` serves a padded batch in one masked call: the rectangle on a GPU, or where
there is no compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gpt.cache import KVShape, RectangleKV, SequenceKV
from kernels import HEAD_DIMS, attention_library

# Above this many new tokens in a row torch's blocked operator beats the kernel's plain loops:
# measured on GPT-2 medium's heads, 2 cores, where the two meet between 64 and 192.
KERNEL_MAX_TOKENS = 128

Counts = NDArray[np.int64]


def attention_kernel(shape: KVShape) -> Callable[..., object] | None:
    """The compiled kernel for such caches; None where torch's operators are used."""
    library = attention_library() if shape.device.type == "cpu" else None
    if library is None or shape.head_dim not in HEAD_DIMS:
        return None
    kernels = {torch.float32: library.attend_f32, torch.bfloat16: library.attend_bf16}
    return kernels.get(shape.dtype)


class Span(NamedTuple):
    """One row's tokens in the iteration's flat axis, and its cache."""

    first: int
    length: int
    start: int  # tokens already in the cache
    kv: SequenceKV


class RaggedAttention:
    """`attend` for a flat axis of tokens: q, k, v `[N, H, D]`; tokens of no span give zeros."""

    def __init__(self, spans: Sequence[Span], shape: KVShape) -> None:
        self._kernel = attention_kernel(shape)
        if self._kernel is None:
            by_kernel, self._by_torch = [], [span for span in spans if span.length]
        else:
            by_kernel = [span for span in spans if 0 < span.length <= KERNEL_MAX_TOKENS]
            self._by_torch = [span for span in spans if span.length > KERNEL_MAX_TOKENS]
        self._rows = len(by_kernel)
        if by_kernel:
            self._lay_out(by_kernel, shape.n_layer)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        if self._rows:
            _, heads, dim = q.shape
            assert self._kernel is not None
            self._kernel(
                dim, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(),
                self._rows, heads, q.stride(0), *self._geometry,
                self._key_at[layer], self._value_at[layer],
            )  # fmt: skip
        attend_rows(self._by_torch, layer, q, k, v, out)
        return out

    def _lay_out(self, spans: Sequence[Span], layers: int) -> None:
        """What the kernel reads of the rows; addresses per layer, computed once for all of them."""
        table = np.array([span[:3] + span.kv.geometry for span in spans], dtype=np.int64).T.copy()
        first, count, start, head_stride, layer_bytes, key_at, value_at = table
        offsets = np.arange(layers, dtype=np.int64)[:, None] * layer_bytes
        keys, values = key_at + offsets, value_at + offsets
        self._alive = table, keys, values  # what the pointers point into
        self._geometry = _pointers((first, count, start, head_stride))
        self._key_at, self._value_at = _pointers(keys), _pointers(values)


def _pointers(rows: Sequence[Counts] | Counts) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(row.ctypes.data) for row in rows]


def attend_rows(
    spans: Sequence[Span], layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor
) -> None:
    """Each span's new keys and values go to its cache; its queries see all up to themselves."""
    for span in spans:
        new, end = slice(span.first, span.first + span.length), span.start + span.length
        keys, values = span.kv.keys[layer, :, :end], span.kv.values[layer, :, :end]  # [H, end, D]
        keys[:, span.start :] = k[new].transpose(0, 1)
        values[:, span.start :] = v[new].transpose(0, 1)
        attended = F.scaled_dot_product_attention(
            q[new].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=_causal_mask(span, q.device) if span.start and span.length > 1 else None,
            is_causal=span.start == 0 and span.length > 1,
        )
        out[new] = attended[0].transpose(0, 1)


def _causal_mask(span: Span, device: torch.device) -> Tensor:
    # is_causal aligns the triangle to the first key; a chunk over a past needs it at the last
    end = span.start + span.length
    return torch.ones(span.length, end, dtype=torch.bool, device=device).tril(span.start)


class RectangleAttention:
    """`attend` for a rectangle of rows with as many new columns each, flattened to `[R * W]`.

    `positions` `[R, W]` in the cache; of row r the last `counts[r]` are tokens, the others padding.
    What comes of padding is finite and means nothing."""

    def __init__(self, rectangle: RectangleKV, positions: Counts, counts: Counts) -> None:
        width = positions.shape[1]
        device = rectangle.keys.device
        self._rectangle = rectangle
        self._end = int(positions.max()) + 1
        at = torch.from_numpy(positions).to(device)
        self._mask = (torch.arange(self._end, device=device) <= at[:, :, None])[:, None]
        row, column = np.nonzero(np.arange(width) >= width - counts[:, None])
        # of the tokens: where they lie in the flat axis, in which row and column of the cache
        indices = np.stack([row * width + column, row, positions[row, column]])
        self._flat, self._row, self._column = torch.from_numpy(indices).to(device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._rectangle.keys[layer], self._rectangle.values[layer]  # [R, H, cap, D]
        keys[self._row, :, self._column] = k[self._flat]
        values[self._row, :, self._column] = v[self._flat]
        attended = F.scaled_dot_product_attention(
            q.view(len(keys), -1, *q.shape[1:]).transpose(1, 2),  # [R * W, H, D] -> [R, H, W, D]
            keys[:, :, : self._end],
            values[:, :, : self._end],
            attn_mask=self._mask,  # [R, 1, W, end]
        )
        return attended.transpose(1, 2).flatten(0, 1)
