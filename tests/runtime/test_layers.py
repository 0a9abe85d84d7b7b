"""What the kernels compute between matrix products, against the formulas in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.decoder import AddRMSNorm, Block, Decoder, RMSNorm
from models.description import Description
from models.rope import Rope
from runtime.layers import (
    KernelAddRMSNorm,
    KernelGated,
    KernelRMSNorm,
    KernelRotation,
    kernels_work,
    use_kernels,
)

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8}
EPS = 1e-5

dtypes = pytest.mark.parametrize("dtype", [d for d in ROUNDING if kernels_work(d)], ids=str)
widths = pytest.mark.parametrize("width", [1, 16, 576, 1021])
ROWS = (1, 3, 70)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def norm_of(weight: Tensor) -> AddRMSNorm:
    norm = AddRMSNorm(len(weight), EPS).requires_grad_(False)
    norm.weight.copy_(weight)
    return norm


def description(*, head_dim: int = 16, norms: bool) -> Description:
    return Description(
        "qwen3", vocab_size=50, context=64, n_layer=2, n_head=3, kv_heads=1, head_dim=head_dim,
        n_embd=48, mlp_width=72, norm_eps=EPS, tied=True, ropes=(Rope(1e4), None),
        windows=(None, None), qk_norms=norms, norms_after=norms, query_scale=0.5,
        activation="gelu_tanh" if norms else "silu",
    )  # fmt: skip


def close(found: Tensor, exact: Tensor) -> bool:
    limit = ROUNDING[found.dtype]
    return torch.allclose(found.double(), exact, rtol=limit, atol=limit)


@dtypes
@widths
def test_a_residual_sum_is_rounded_and_normed(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(width)
    weight = torch.randn(width)
    norm = norm_of(weight)
    for rows in ROWS:
        x, y = (3 * torch.randn(2, rows, width)).to(dtype)
        summed, normed = KernelAddRMSNorm(norm, dtype)(x, y)
        assert torch.equal(summed, x + y)
        assert close(normed, rms_norm(summed.double(), weight.double()))
        assert torch.equal(KernelRMSNorm(norm, dtype)(summed), normed)
        alone = [KernelAddRMSNorm(norm, dtype)(*pair)[1] for pair in zip(x, y, strict=True)]
        assert torch.equal(torch.stack(alone), normed), "whatever the other rows are"


@dtypes
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@widths
def test_a_gate_multiplies_what_is_beside_it(
    dtype: torch.dtype, activation: str, width: int
) -> None:
    torch.manual_seed(width)
    for rows in ROWS:
        x = (4 * torch.randn(rows, 2 * width)).to(dtype)
        x[0, 0] = -1e4
        gate, up = x.double().chunk(2, dim=-1)
        by = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        found = KernelGated(activation, dtype)(x)
        assert close(found, by * up)
        assert torch.equal(found[-1], KernelGated(activation, dtype)(x[-1]))


@dtypes
@pytest.mark.parametrize("dim", [16, 40, 64, 128, 256])
@pytest.mark.parametrize("normed", [False, True])
def test_queries_and_keys_are_normed_and_turned_in_place(
    dtype: torch.dtype, dim: int, normed: bool
) -> None:
    torch.manual_seed(dim)
    block = Block(description(head_dim=dim, norms=normed)).requires_grad_(False)
    weights = 1 + torch.rand(2, dim)
    if block.q_norm is not None and block.k_norm is not None:
        block.q_norm.weight.copy_(weights[0])
        block.k_norm.weight.copy_(weights[1])
    for tokens in ROWS:
        qkv = torch.randn(tokens, 5 * dim).to(dtype)
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in qkv.split([3 * dim, dim, dim], dim=-1))
        angles = torch.rand(tokens, 1, dim // 2) * 100
        turns = angles.cos(), angles.sin()
        given = [x.double() for x in (q, k, v)]
        found = KernelRotation(block, dtype)(q, k, turns, block.q_norm, block.k_norm)
        if normed:
            given[:2] = [rms_norm(x, w.double()) for x, w in zip(given, weights, strict=False)]
        turn = torch.polar(torch.ones_like(angles).double(), angles.double())
        for x, scale, turned in zip(given, (0.5, 1.0), found, strict=False):
            pairs = torch.complex(*x.chunk(2, dim=-1)) * turn * scale
            assert close(turned, torch.cat([pairs.real, pairs.imag], dim=-1))
        assert found[0].data_ptr() == qkv.data_ptr(), "nothing is copied"
        assert torch.equal(v.double(), given[2])


@pytest.mark.parametrize("norms", [False, True])
def test_a_decoder_with_the_kernels_computes_the_same(norms: bool) -> None:
    if not kernels_work(torch.float32):
        pytest.skip("no compiler")
    torch.manual_seed(0)
    network = Decoder(description(norms=norms)).requires_grad_(False)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    asked = (torch.randint(0, 50, (9,)), torch.arange(9), lambda _, q, k, v: q * k + v)
    expected = network(*asked)
    for _ in range(2):  # executors may share a network
        use_kernels(network, torch.float32)
    assert not any(isinstance(module, RMSNorm) for module in network.modules())
    assert torch.allclose(network(*asked), expected, atol=1e-4)
