"""Attention over cached keys and values: the one operation that must know whose token is whose.

`RaggedAttention` serves rows of any length, each over its own past: the compiled kernel on a CPU,
or, row by row, torch's own operator, which also defines what is computed (`attend_rows`).
`RectangleAttention` serves a padded batch in one masked call: the dense layout on a GPU, or where
there is no compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gpt.cache import RectangleKV
from kernels import HEAD_DIMS, attention_library

# Above this many new tokens in a row torch's blocked operator beats the kernel's plain loops:
# measured on GPT-2 medium's heads, 2 cores, where the two meet between 64 and 192.
KERNEL_MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Span:
    """One row's tokens in the iteration's flat axis, and its cache `[n_layer, H, capacity, D]`."""

    first: int
    count: int
    start: int  # tokens already in the cache
    keys: Tensor
    values: Tensor


class RaggedAttention:
    """`attend` for a flat axis of tokens: q, k, v `[N, H, D]`; tokens of no span give zeros."""

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype, device: torch.device) -> None:
        spans = [span for span in spans if span.count]
        library = attention_library() if device.type == "cpu" else None
        self._function = {
            torch.float32: getattr(library, "attend_f32", None),
            torch.bfloat16: getattr(library, "attend_bf16", None),
        }.get(dtype)
        if self._function is None or not spans or spans[0].keys.shape[-1] not in HEAD_DIMS:
            self._kernel_spans, self._torch_spans = [], spans
        else:
            self._kernel_spans = [span for span in spans if span.count <= KERNEL_MAX_TOKENS]
            self._torch_spans = [span for span in spans if span.count > KERNEL_MAX_TOKENS]
        if self._kernel_spans:
            self._lay_out(self._kernel_spans)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        if self._kernel_spans:
            _, heads, dim = q.shape
            assert self._function is not None
            self._function(
                dim, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(),
                len(self._kernel_spans), heads, q.stride(0),
                *self._geometry, self._key_at[layer], self._value_at[layer],
            )  # fmt: skip
        attend_rows(self._torch_spans, layer, q, k, v, out)
        return out

    def _lay_out(self, spans: Sequence[Span]) -> None:
        """Addresses per layer and row, computed once for the iteration's layers."""

        def column(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(values, dtype=np.int64)

        def addresses(tensors: list[Tensor]) -> list[ctypes.c_void_p]:
            strides = column([t.stride(0) * t.element_size() for t in tensors])
            layers = np.arange(tensors[0].shape[0], dtype=np.int64)[:, None]
            table = column([t.data_ptr() for t in tensors]) + layers * strides
            self._alive.append(table)
            return [ctypes.c_void_p(row.ctypes.data) for row in table]

        self._alive: list[object] = []  # what the addresses point into
        columns = [
            column([span.first for span in spans]),
            column([span.count for span in spans]),
            column([span.start for span in spans]),
            column([span.keys.stride(1) for span in spans]),
        ]
        self._alive += columns
        self._geometry = [ctypes.c_void_p(c.ctypes.data) for c in columns]
        self._key_at = addresses([span.keys for span in spans])
        self._value_at = addresses([span.values for span in spans])


def attend_rows(
    spans: Sequence[Span], layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor
) -> None:
    """Each span's new keys and values go to its cache; its queries see all up to themselves."""
    for span in spans:
        new, end = slice(span.first, span.first + span.count), span.start + span.count
        keys, values = span.keys[layer, :, :end], span.values[layer, :, :end]  # [H, end, D]
        keys[:, span.start :] = k[new].transpose(0, 1)
        values[:, span.start :] = v[new].transpose(0, 1)
        attended = F.scaled_dot_product_attention(
            q[new].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=_causal_mask(span, q.device) if span.start and span.count > 1 else None,
            is_causal=span.start == 0 and span.count > 1,
        )
        out[new] = attended[0].transpose(0, 1)


def _causal_mask(span: Span, device: torch.device) -> Tensor:
    # is_causal aligns the triangle to the first key; a chunk over a past needs it at the last
    end = span.start + span.count
    return torch.ones(span.count, end, dtype=torch.bool, device=device).tril(span.start)


class RectangleAttention:
    """`attend` for a rectangle of rows with `width` new columns each, flattened to `[B * W]`."""

    def __init__(self, rectangle: RectangleKV, width: int, device: torch.device) -> None:
        self._rectangle, self._width = rectangle, width
        start, self._end = rectangle.filled, rectangle.filled + width
        slots = torch.arange(self._end, device=device)
        pads = torch.tensor(rectangle.pads, device=device)[:, None, None]
        causal = slots[None, :] <= slots[start:, None]  # [W, end]
        # a padding query sees itself: a row that sees nothing would give NaN
        itself = slots[None, :] == slots[start:, None]
        self._mask = ((slots >= pads) & causal | itself)[:, None]  # [B, 1, W, end]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = len(self._rectangle.pads)
        # [B * W, H, D] -> [B, H, W, D]
        q, k, v = (t.view(rows, self._width, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
        start = self._rectangle.filled
        keys = self._rectangle.keys[layer, :, :, : self._end]
        values = self._rectangle.values[layer, :, :, : self._end]
        keys[:, :, start:] = k
        values[:, :, start:] = v
        attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=self._mask)
        return attended.transpose(1, 2).flatten(0, 1)
