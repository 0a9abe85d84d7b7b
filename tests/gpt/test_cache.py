"""The KV budget closes: what handles hold returns with their last reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.cache import KVBudget, KVShape, RaggedMemory, RectangleMemory
from gpt.linear import PackedLinear, pack_linears
from gpt.network import GPT, GPTConfig, init_weights
from seams import Need, OutOfMemoryError


class Owner:
    pass


@given(st.lists(st.integers(0, 60), max_size=30), st.randoms())
def test_used_is_what_living_owners_took(sizes, random) -> None:  # type: ignore[no-untyped-def]
    budget = KVBudget(200)
    alive: list[tuple[Owner, int]] = []
    for size in sizes:
        owner = Owner()
        if budget.used + size > 200:
            with pytest.raises(OutOfMemoryError, match="--kv-memory"):
                budget.take(size, owner)
        else:
            budget.take(size, owner)
            alive.append((owner, size))
        del owner
        if alive and random.random() < 0.5:
            alive.pop(random.randrange(len(alive)))
        assert budget.used == sum(size for _, size in alive)
    alive.clear()
    assert budget.used == 0


def test_a_rectangle_costs_its_padding_and_a_pack_does_not() -> None:
    needs = [Need(10, 5), Need(2, 50)]
    assert RectangleMemory(1000).cost(needs) == 2 * (10 + 50)
    assert RaggedMemory(1000).cost(needs) == 15 + 52


def test_bytes_of_a_token_are_those_of_the_published_shape() -> None:
    shape = KVShape(24, 16, 64, torch.bfloat16, torch.device("cpu"))
    assert shape.token_bytes == 98_304  # gpt2-medium: 2 x 24 layers x 1024 x 2 bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_linear_layers_compute_what_plain_ones_do(dtype: torch.dtype) -> None:
    network = GPT(GPTConfig(vocab_size=50, context=8, n_layer=1, n_head=2, n_embd=32))
    init_weights(network, 0)
    network.to(dtype).requires_grad_(False)
    layers = {
        name: getattr(network.blocks[0], name) for name in ("qkv", "attn_proj", "fc", "mlp_proj")
    }
    pack_linears(network)
    for name, plain in layers.items():
        packed = getattr(network.blocks[0], name)
        assert isinstance(packed, PackedLinear)
        x = torch.randn(5, plain.in_features).to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        assert torch.allclose(packed(x), plain(x), atol=tolerance, rtol=tolerance)


def test_a_lone_row_of_a_large_float32_layer_is_computed_in_company() -> None:
    layer = torch.nn.Linear(1024, 512).requires_grad_(False)
    packed = PackedLinear(layer)
    assert packed.fill is not None
    for rows in range(1, 6):
        x = torch.randn(rows, 1024)
        assert packed(x).shape == (rows, 512)
        assert torch.allclose(packed(x), layer(x), atol=1e-5, rtol=1e-5)
