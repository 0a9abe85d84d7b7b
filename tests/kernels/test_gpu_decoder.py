"""The Triton kernels of a decoder's layers, interpreted on a CPU, against the formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.gpu.decoder import add_rms_norm, gated, rms_norm, rotate
from tests.kernels.launches import launched

pytestmark = pytest.mark.usefixtures("on_device")

# the interpreter rounds float32 to bfloat16 towards zero
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
EPS = 1e-5
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def close(ours: Tensor, exact: Tensor) -> bool:
    limit = TOLERANCE[ours.dtype]
    return torch.allclose(ours.double(), exact, rtol=limit, atol=limit)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


@dtypes
@pytest.mark.parametrize("size", [16, 1100])
def test_a_residual_sum_and_its_norm_are_one_launch(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = (3 * torch.randn(2, 3, size)).to(dtype)
    weight = torch.randn(size)
    with launched() as names:
        summed, found = add_rms_norm(x, y, weight, EPS)
    assert names == ["rms_norm"]
    assert close(summed, (x + y).double())
    assert close(found, normed(summed.double(), weight.double()))
    assert torch.equal(rms_norm(summed, weight, EPS), found)
    assert torch.equal(add_rms_norm(x[2], y[2], weight, EPS)[1], found[2])


@dtypes
@pytest.mark.parametrize("gelu", [False, True])
def test_a_gate_and_its_product_are_one_launch(gelu: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(3, 2 * 1030)).to(dtype)
    gate, up = x.double().chunk(2, dim=-1)
    with launched() as names:
        found = gated(x, gelu)
    assert names == ["gated"]
    by = F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)
    assert close(found, by * up)


@dtypes
@pytest.mark.parametrize("dim", [16, 80])
@pytest.mark.parametrize("with_norms", [False, True])
def test_queries_and_keys_are_normed_and_turned_in_one_launch(
    dim: int, with_norms: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 5 * dim).to(dtype)
    q, k, v = (part.unflatten(-1, (-1, dim)) for part in qkv.split([3 * dim, dim, dim], dim=-1))
    given = [x.double() for x in (q, k, v)]
    angles = 100 * torch.rand(3, dim // 2)
    weights = 1 + torch.rand(2, dim)
    with launched() as names:
        rotate(
            q, k, angles.cos(), angles.sin(), *(weights if with_norms else (None, None)), EPS, 0.5
        )
    assert names == ["rotate"]
    if with_norms:
        given[:2] = [normed(x, w.double()) for x, w in zip(given, weights, strict=False)]
    turn = torch.polar(torch.ones_like(angles).double(), angles.double())[:, None]
    for x, scale, found in zip(given, (0.5, 1.0), (q, k), strict=False):
        pairs = torch.complex(*x.chunk(2, dim=-1)) * turn * scale
        assert close(found, torch.cat([pairs.real, pairs.imag], dim=-1))
    assert torch.equal(v.double(), given[2])
