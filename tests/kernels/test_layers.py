"""What a kernel for CPUs makes of queries and keys, against the formula in double precision; and
networks whose layers Triton's kernels replace, with how many are launched."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import Tensor

from models.decoder import Block, Decoder, Gated, RMSNorm
from models.description import Description
from models.gpt2 import GPT, GPTConfig, causal_attention, init_weights
from models.rope import Rope
from runtime.gpu.layers import PaddedHead, adapt
from runtime.layers import (
    KernelRotation,
    kernels_work,
)
from tests.kernels.conftest import DEVICE, launched

EPS = 1e-5
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8}
ROWS = (1, 3, 70)

for_cpus = pytest.mark.parametrize("dtype", [of for of in ROUNDING if kernels_work(of)], ids=str)


def close(found: Tensor, exact: Tensor) -> bool:
    limit = ROUNDING[found.dtype]
    return torch.allclose(found.double(), exact, rtol=limit, atol=limit)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def description(*, head_dim: int = 16, norms: bool) -> Description:
    return Description(
        "qwen3", vocab_size=50, context=64, n_layer=2, n_head=3, kv_heads=1, head_dim=head_dim,
        n_embd=48, mlp_width=72, norm_eps=EPS, tied=True, ropes=(Rope(1e4), None),
        windows=(None, None), qk_norms=norms, norms_after=norms, query_scale=0.5,
        activation="gelu_tanh" if norms else "silu",
    )  # fmt: skip


@for_cpus
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


# --- networks -------------------------------------------------------------------------------


def gpt() -> GPT:
    made = GPT(GPTConfig(vocab_size=97, context=64, n_layer=2, n_head=2, n_embd=32))
    init_weights(made, 0)
    return made.requires_grad_(False)


@pytest.mark.parametrize("norms", [False, True])
def test_a_decoder_whose_layers_are_tritons_computes_the_same(norms: bool) -> None:
    torch.manual_seed(0)
    with DEVICE:
        network = Decoder(description(norms=norms)).requires_grad_(False)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        replaced = copy.deepcopy(network)
        for _ in range(2):  # executors may share a network
            adapt(replaced, kernels=True)
        plain = [m for m in replaced.modules() if isinstance(m, RMSNorm | Gated)]
        assert not plain
        asked = (torch.randint(0, 50, (9,)), torch.arange(9), lambda _, q, k, v: q * k + v)
        with launched() as names:
            hidden = replaced(*asked)
        assert torch.allclose(hidden, network(*asked), atol=1e-4)
    # the first norm, and of each layer's two parts before, or also behind them; and those of
    # queries and keys, where nothing is turned
    launches = {"rms_norm": 1 + 2 * 4 + 2 if norms else 1 + 2 * 2, "gated": 2, "rotate": 1}
    assert Counter(names) == launches


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("kernels", [False, True])
def test_an_adapted_gpt_computes_the_same_and_shares_a_padded_vocabulary(kernels: bool) -> None:
    plain, adapted = gpt(), gpt()
    for _ in range(2):
        adapt(adapted, kernels=kernels)
    tokens = torch.tensor([[1, 96, 5], [7, 7, 0]])
    asked = (tokens, torch.arange(3), causal_attention)
    with launched() as names:
        logits = adapted.head(adapted(*asked))
    # of the embeddings' sum, and of two sums in each block
    assert Counter(names) == ({"add_norm": 5, "bias_gelu": 2} if kernels else {})
    assert logits.shape == (2, 3, 97)
    assert torch.allclose(logits, plain.head(plain(*asked)), atol=1e-6)
    head = adapted.head
    assert isinstance(head, PaddedHead)
    assert head.weight.shape == (128, 32)
    assert adapted.wte.weight.shape == (97, 32)
    assert adapted.wte.weight.data_ptr() == head.weight.data_ptr()
    assert head(torch.zeros(3, 32)).stride() == (128, 1)
