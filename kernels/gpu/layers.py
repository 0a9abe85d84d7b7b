"""Triton kernels of what a layer computes between its matrix products.

`models.gpt2` defines it: `AddNorm` and `GeluLinear`, the latter with the approximation by tanh.
Sums are in float32; a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.operators import operator

GELU_BLOCK = 1024
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


def _launch_add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x, y = x.contiguous(), y.expand_as(x).contiguous()
    summed, normed = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _add_norm[(x.numel() // size,)](
        x, y, weight, bias, summed, normed, eps, size, block,
        num_warps=min(16, max(1, block // 256)),
    )  # fmt: skip
    return summed, normed


def _launch_bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    grid = (x.numel() // size, triton.cdiv(size, GELU_BLOCK))
    _bias_gelu[grid](x, bias, out, size, GELU_BLOCK)
    return out


def _fake_add_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _fake_bias_gelu(x: Tensor, _: Tensor) -> Tensor:
    return torch.empty_like(x)


# x, y [..., C], weight, bias [C] -> x + y and its norm
add_norm = operator(
    "add_norm",
    "(Tensor x, Tensor y, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor)",
    _launch_add_norm,
    _fake_add_norm,
)
# x [..., C], bias [C] -> GELU of their sum, by tanh
bias_gelu = operator(
    "bias_gelu", "(Tensor x, Tensor bias) -> Tensor", _launch_bias_gelu, _fake_bias_gelu
)
