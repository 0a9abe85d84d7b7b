"""Networks whose layers are kernels for CPUs or Triton's, with how many of these are launched."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import Tensor

from models.decoder import Decoder
from models.description import Description, Rope
from models.gpt2 import GPT, Attend, GPTConfig, causal_attention, init_weights
from runtime.layers import TYPES, CPULayers, PaddedHead, adapt_to_cpu, adapt_to_gpu
from tests.kernels.conftest import DEVICE, launched

EPS = 1e-5


def description(*, head_dim: int = 16, norms: bool) -> Description:
    return Description(
        "qwen3", vocab_size=50, context=64, n_layer=2, n_head=3, kv_heads=1, head_dim=head_dim,
        n_embd=48, mlp_width=72, norm_eps=EPS, tied=True, ropes=(Rope(1e4), None),
        windows=(None, None), qk_norms=norms, norms_after=norms, query_scale=0.5,
        activation="gelu_tanh" if norms else "silu",
    )  # fmt: skip


def decoder(*, head_dim: int = 16, norms: bool) -> Decoder:
    torch.manual_seed(0)
    made = Decoder(description(head_dim=head_dim, norms=norms)).requires_grad_(False)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def asked_of(tokens: int) -> tuple[Tensor, Tensor, Attend]:
    return torch.randint(0, 50, (tokens,)), torch.arange(tokens) % 64, lambda _, q, k, v: q * k + v


@pytest.mark.parametrize("dtype", [of for of in TYPES if CPULayers(of).works], ids=str)
@pytest.mark.parametrize("head_dim", [16, 40, 64, 128])
@pytest.mark.parametrize("norms", [False, True])
def test_a_decoder_whose_layers_are_those_for_cpus_is_as_close_to_float64(
    dtype: torch.dtype, head_dim: int, norms: bool
) -> None:
    plain = decoder(head_dim=head_dim, norms=norms).to(dtype)
    replaced, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    adapt_to_cpu(replaced, dtype)
    for tokens in (1, 3, 70):
        asked = asked_of(tokens)
        wanted = exact(*asked)
        ours, theirs = ((of(*asked).double() - wanted).abs().mean() for of in (replaced, plain))
        assert ours <= 1.5 * theirs + 1e-6


def gpt() -> GPT:
    made = GPT(GPTConfig(vocab_size=97, context=64, n_layer=2, n_head=2, n_embd=32))
    init_weights(made, 0)
    return made.requires_grad_(False)


@pytest.mark.parametrize("norms", [False, True])
def test_a_decoder_whose_layers_are_tritons_computes_the_same(norms: bool) -> None:
    with DEVICE:
        network = decoder(norms=norms)
        replaced = copy.deepcopy(network)
        for _ in range(2):  # executors may share a network
            adapt_to_gpu(replaced, kernels=True)
        asked = asked_of(9)
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
        adapt_to_gpu(adapted, kernels=kernels)
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
