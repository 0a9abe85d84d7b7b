"""Triton kernels of what a layer computes between its matrix products.

`models/gpt2.py` defines it: `AddNorm`, and `GeluLinear` with the approximation by tanh; and
`models/decoder.py`: `RMSNorm` with and without the residual sum, `Gated`, and the rotation of
queries and keys with their norms. Arithmetic is in float32; a row's result does not depend on the
rows beside it. Rotated keys are stored by attention, which reads them anyway.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.operators import operator

COLUMNS = 1024  # that a program computes, where they do not depend on each other
MINUS_LOG2_E = tl.constexpr(-1.4426950408889634)


@triton.jit
def _add_norm(
    x, y, weight, bias, summed, normed, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * SIZE
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    total = tl.load(x + at + place, mask=inside, other=0).to(tl.float32)
    total += tl.load(y + at + place, mask=inside, other=0).to(tl.float32)
    rounded = total.to(summed.dtype.element_ty)
    tl.store(summed + at + place, rounded, mask=inside)
    total = rounded.to(tl.float32)
    centred = tl.where(inside, total - tl.sum(total, 0) / SIZE, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / SIZE + eps)
    gain = tl.load(weight + place, mask=inside, other=0).to(tl.float32)
    shift = tl.load(bias + place, mask=inside, other=0).to(tl.float32)
    found = centred * scale * gain + shift
    tl.store(normed + at + place, found.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _bias_gelu(x, bias, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    value = tl.load(x + at + place, mask=inside, other=0).to(tl.float32)
    value += tl.load(bias + place, mask=inside, other=0).to(tl.float32)
    # (1 + tanh z) / 2 = 1 / (1 + exp(-2z))
    twice = 1.5957691216057308 * (value + 0.044715 * value * value * value)
    found = value / (1.0 + tl.exp2(twice * MINUS_LOG2_E))
    tl.store(out + at + place, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rms_norm(
    x, y, weight, summed, normed, eps, ADD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * SIZE
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    total = tl.load(x + at + place, mask=inside, other=0).to(tl.float32)
    if ADD:
        total += tl.load(y + at + place, mask=inside, other=0).to(tl.float32)
        rounded = total.to(summed.dtype.element_ty)
        tl.store(summed + at + place, rounded, mask=inside)
        total = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / SIZE + eps)
    gain = tl.load(weight + place, mask=inside, other=0).to(tl.float32)
    tl.store(normed + at + place, (total * scale * gain).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _gated(x, out, GELU: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    gate = tl.load(x + row * 2 * SIZE + place, mask=inside, other=0).to(tl.float32)
    up = tl.load(x + row * 2 * SIZE + SIZE + place, mask=inside, other=0).to(tl.float32)
    slope = gate
    if GELU:  # (1 + tanh z) / 2 = 1 / (1 + exp(-2z))
        slope *= 1.5957691216057308 * (1.0 + 0.044715 * gate * gate)
    small = tl.exp2(tl.minimum(slope * MINUS_LOG2_E, 126.0))  # finite
    found = gate / (1.0 + small) * up
    tl.store(out + row * SIZE + place, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_head(
    x, cos, sin, weight, eps, scale,
    NORM: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, PADDED)
    inside = d < HALF
    c, s = tl.load(cos + d, mask=inside, other=0), tl.load(sin + d, mask=inside, other=0)
    a = tl.load(x + d, mask=inside, other=0).to(tl.float32)
    b = tl.load(x + HALF + d, mask=inside, other=0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / (2 * HALF) + eps)
        a *= factor * tl.load(weight + d, mask=inside, other=0)
        b *= factor * tl.load(weight + HALF + d, mask=inside, other=0)
    a *= scale
    b *= scale
    tl.store(x + d, (a * c - b * s).to(x.dtype.element_ty), mask=inside)
    tl.store(x + HALF + d, (b * c + a * s).to(x.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    q, k, cos, sin, q_weight, k_weight, q_stride, k_stride, eps, scale,
    HEADS: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, HALF: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """One head of one token: of queries, and after them of keys."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if head < HEADS:
        _rotate_head(
            q + token * q_stride + head * 2 * HALF, cos + token * HALF, sin + token * HALF,
            q_weight, eps, scale, Q_NORM, HALF, PADDED,
        )  # fmt: skip
    else:
        _rotate_head(
            k + token * k_stride + (head - HEADS) * 2 * HALF, cos + token * HALF,
            sin + token * HALF, k_weight, eps, 1.0, K_NORM, HALF, PADDED,
        )  # fmt: skip


def _warps(block: int) -> int:
    return min(16, max(1, block // 256))


def _two(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _one(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


@operator(_two)
def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x, y `[..., C]`, weight, bias `[C]` -> x + y and its norm."""
    x, y = x.contiguous(), y.expand_as(x).contiguous()
    summed, normed = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _add_norm[(x.numel() // size,)](
        x, y, weight, bias, summed, normed, eps, size, block, num_warps=_warps(block)
    )
    return summed, normed


@operator(_one)
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """x `[..., C]`, bias `[C]` -> GELU of their sum, by tanh."""
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    grid = (x.numel() // size, triton.cdiv(size, COLUMNS))
    _bias_gelu[grid](x, bias, out, size, COLUMNS)
    return out


@operator(_two)
def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, y `[..., C]`, weight float32 `[C]` -> x + y and its norm."""
    x, y = x.contiguous(), y.expand_as(x).contiguous()
    summed, normed = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _rms_norm[(x.numel() // size,)](
        x, y, weight, summed, normed, eps, True, size, block, num_warps=_warps(block)
    )
    return summed, normed


@operator(_one)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x `[..., C]`, weight float32 `[C]` -> its norm."""
    x = x.contiguous()
    normed, size = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(size)
    _rms_norm[(x.numel() // size,)](
        x, x, weight, normed, normed, eps, False, size, block, num_warps=_warps(block)
    )
    return normed


@operator(lambda x, _: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)))
def gated(x: Tensor, gelu: bool) -> Tensor:
    """x `[..., 2 n]` -> SiLU of the first half, or GELU by tanh, times the second."""
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = x.new_empty((*x.shape[:-1], size))
    grid = (out.numel() // size, triton.cdiv(size, COLUMNS))
    _gated[grid](x, out, gelu, size, COLUMNS)
    return out


@operator(lambda *_: None, changes=("q", "k"))
def rotate(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    scale: float,
) -> None:
    """q `[N, H, D]` and k `[N, kv_heads, D]` in place, the heads of a token side by side. cos, sin
    `[N, D / 2]`, weights `[D]` float32. `scale`: of queries."""
    tokens, heads, dim = q.shape
    half = dim // 2
    norms = q_weight is not None, k_weight is not None
    _rotate[(tokens, heads + k.shape[1])](
        q, k, cos, sin, q_weight if norms[0] else cos, k_weight if norms[1] else cos,
        q.stride(0), k.stride(0), eps, scale,
        heads, *norms, half, triton.next_power_of_2(half), num_warps=1,
    )  # fmt: skip
