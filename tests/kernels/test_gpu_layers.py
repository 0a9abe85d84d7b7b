"""The Triton kernels between matrix products, interpreted on a CPU, against the plain layers."""

from __future__ import annotations

import copy

import pytest
import torch

from models.decoder import Decoder
from models.gpt2 import GPT, AddNorm, Block, GeluLinear, GPTConfig, causal_attention, init_weights
from runtime.gpu.layers import KernelAddNorm, KernelGeluLinear, PaddedHead, adapt
from runtime.shards import GatheredLinear
from tests.kernels.launches import launched
from tests.runtime.test_layers import description

pytestmark = pytest.mark.usefixtures("on_device")

# the interpreter rounds float32 to bfloat16 towards zero
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@dtypes
@pytest.mark.parametrize("size", [16, 1600])
def test_a_sum_and_its_norm_are_one_launch(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = AddNorm(size).requires_grad_(False)
    norm.weight.normal_()
    norm.bias.normal_()
    norm.to(dtype)
    x, y = (10 + torch.randn(2, 3, size)).to(dtype)
    with launched() as names:
        found = KernelAddNorm(norm)(x, y)
    assert names == ["add_norm"]
    assert close(found[0], x + y)
    assert close(found[1], norm(found[0], torch.zeros_like(x))[1])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    limit = TOLERANCE[ours.dtype]
    return torch.allclose(ours.float(), theirs.float(), rtol=limit, atol=limit)


@dtypes
def test_bias_and_gelu_are_one_launch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = GeluLinear(32, 1030, "tanh").to(dtype).requires_grad_(False)
    linear.bias.normal_(std=3)
    x = torch.randn(3, 32).to(dtype)
    with launched() as names:
        found = KernelGeluLinear(linear)(x)
    assert names == ["bias_gelu"]
    assert close(found, linear(x))


def network(gelu: str = "tanh") -> GPT:
    made = GPT(GPTConfig(vocab_size=97, context=64, n_layer=2, n_head=2, n_embd=32, gelu=gelu))
    init_weights(made, 0)
    return made.requires_grad_(False)


@pytest.mark.parametrize("kernels", [False, True])
def test_an_adapted_network_computes_the_same(kernels: bool) -> None:
    plain, adapted = network(), network()
    adapt(adapted, kernels=kernels)
    tokens = torch.tensor([[1, 96, 5], [7, 7, 0]])
    asked = (tokens, torch.arange(3), causal_attention)
    logits = adapted.head(adapted(*asked))
    assert logits.shape == (2, 3, 97)
    assert torch.allclose(logits, plain.head(plain(*asked)), atol=1e-6)


@pytest.mark.parametrize("norms", [False, True])
def test_an_adapted_decoder_computes_the_same(norms: bool) -> None:
    torch.manual_seed(0)
    plain = Decoder(description(norms=norms)).requires_grad_(False)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    adapted = copy.deepcopy(plain)
    adapt(adapted, kernels=True)
    asked = (torch.arange(5), torch.arange(5), lambda _, q, k, v: q * k + v)
    with launched() as names:
        hidden = adapted(*asked)
    assert set(names) == {"rms_norm", "gated", "rotate"}
    assert torch.allclose(hidden, plain(*asked), atol=1e-4)


def test_the_vocabulary_is_padded_once_and_shared_with_the_embedding() -> None:
    adapted = network()
    for _ in range(2):  # executors may share a network
        adapt(adapted, kernels=False)
    head = adapted.head
    assert isinstance(head, PaddedHead)
    assert head.weight.shape == (128, 32)
    assert adapted.wte.weight.shape == (97, 32)
    assert adapted.wte.weight.data_ptr() == head.weight.data_ptr()
    assert head(torch.zeros(3, 32)).stride() == (128, 1)


def test_the_head_of_a_shard_is_padded_within_the_layer_that_gathers() -> None:
    adapted = network()
    adapted.head = GatheredLinear(adapted.head, 2, 97)  # type: ignore[assignment]
    adapt(adapted, kernels=False)
    assert isinstance(adapted.head.part, PaddedHead)
    assert adapted.head.part(torch.zeros(3, 32)).shape == (3, 97)


def test_a_gelu_of_another_form_is_left_alone() -> None:
    for gelu, fused in (("tanh", True), ("none", False)):
        adapted = network(gelu)
        adapt(adapted, kernels=True)
        block = adapted.blocks[0]
        assert isinstance(block, Block)
        assert isinstance(block.fc, KernelGeluLinear) == fused
