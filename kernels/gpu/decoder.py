"""Triton kernels of what a decoder computes between its matrix products.

`models/decoder.py` defines it: `RMSNorm` with and without the residual sum, `Gated`, and the
rotation of queries and keys with their norms. Arithmetic is in float32; a row's result does not
depend on the rows beside it. Rotated keys are stored by attention, which reads them anyway.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.operators import operator

GATE_BLOCK = 1024
MINUS_LOG2_E = tl.constexpr(-1.4426950408889634)


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


def _launch_norm(x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    y = x if y is None else y.expand_as(x).contiguous()
    add = y is not x
    normed = torch.empty_like(x)
    summed = torch.empty_like(x) if add else normed
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _rms_norm[(x.numel() // size,)](
        x, y, weight, summed, normed, eps, add, size, block,
        num_warps=min(16, max(1, block // 256)),
    )  # fmt: skip
    return summed, normed


def _launch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch_norm(x, None, weight, eps)[1]


def _launch_gated(x: Tensor, gelu: bool) -> Tensor:
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = x.new_empty((*x.shape[:-1], size))
    grid = (out.numel() // size, triton.cdiv(size, GATE_BLOCK))
    _gated[grid](x, out, gelu, size, GATE_BLOCK)
    return out


def _launch_rotate(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    scale: float,
) -> None:
    tokens, heads, dim = q.shape
    half = dim // 2
    norms = q_weight is not None, k_weight is not None
    _rotate[(tokens, heads + k.shape[1])](
        q, k, cos, sin, q_weight if norms[0] else cos, k_weight if norms[1] else cos,
        q.stride(0), k.stride(0), eps, scale,
        heads, *norms, half, triton.next_power_of_2(half), num_warps=1,
    )  # fmt: skip


def _fake_add_rms_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _fake_rms_norm(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _fake_gated(x: Tensor, _: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _fake_rotate(*_: object) -> None:
    pass


# x, y [..., C], weight float32 [C] -> x + y and its norm
add_rms_norm = operator(
    "add_rms_norm",
    "(Tensor x, Tensor y, Tensor weight, float eps) -> (Tensor, Tensor)",
    _launch_norm,
    _fake_add_rms_norm,
)
# x [..., C], weight float32 [C] -> its norm
rms_norm = operator(
    "rms_norm", "(Tensor x, Tensor weight, float eps) -> Tensor", _launch_rms_norm, _fake_rms_norm
)
# x [..., 2 n] -> SiLU of the first half, or GELU by tanh, times the second
gated = operator("gated", "(Tensor x, bool gelu) -> Tensor", _launch_gated, _fake_gated)
# q [N, H, D] and k [N, kv_heads, D] in place, the heads of a token side by side; cos, sin
# [N, D / 2], weights [D] float32; `scale` is of queries
rotate = operator(
    "rotate",
    "(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, Tensor? q_weight, Tensor? k_weight, "
    "float eps, float scale) -> ()",
    _launch_rotate,
    _fake_rotate,
)
