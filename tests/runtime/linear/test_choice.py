"""The choice among variants: kept, believed only where it can be, the same for all shards, and
possible without kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import kernels.choice
import runtime.linear.choice
import runtime.linear.layers
from models.gpt2 import GPT, GPTConfig, init_weights
from runtime.linear.blocks import BlockEmbedding, BlockKind, BlockLinear
from runtime.linear.choice import (
    KernelOffer,
    agreed,
    is_batch_invariant,
    pack_linears,
)
from runtime.linear.layers import Int8Linear, KernelLinear, Precision, variants
from tests.runtime.linear.test_layers import kinds, random_raw


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.choice, "cache_folder", lambda: tmp_path)


def network(precision: Precision) -> GPT:
    made = GPT(GPTConfig(vocab_size=50, context=8, n_layer=1, n_head=2, n_embd=32))
    init_weights(made, 0)
    made.requires_grad_(False)
    if precision == "float32":
        return made
    if precision == "int8":
        for module in list(made.modules()):
            for name, layer in list(module.named_children()):
                if isinstance(layer, nn.Linear):
                    module.set_submodule(name, Int8Linear.of(layer))
    return made.bfloat16()


precisions = pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])


@kinds
def test_a_networks_block_layers_are_replaced_and_hold_no_second_copy(kind: BlockKind) -> None:
    torch.manual_seed(0)
    head = BlockLinear.of(kind, random_raw(kind, 64, 50))
    network = nn.ModuleDict(
        {"embedding": BlockEmbedding(head, torch.bfloat16), "head": head, "norm": nn.LayerNorm(64)}
    )
    names = pack_linears(network)
    assert names.keys() == {"64 x 50"}
    assert names["64 x 50"].split()[0] == kind
    assert is_batch_invariant(names)
    packed = network["head"]
    if isinstance(packed, KernelLinear):
        assert packed.weight.data_ptr() == head.panels.data_ptr()
    x = torch.randn(4, 64).bfloat16()
    torch.testing.assert_close(packed(x), head(x), rtol=2**-7, atol=1e-2)


@precisions
def test_for_drafts_layers_are_chosen_among_batch_invariant_variants(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the choice for others, which is kept in another file, stays what it is."""
    if not any(variant.batch_invariant for variant in variants(precision)):
        pytest.skip("there are none here")
    monkeypatch.setattr(runtime.linear.choice, "measure", lambda _, __, tried: tried[-1])
    before = pack_linears(network(precision))
    assert is_batch_invariant(pack_linears(network(precision), invariant=True))
    assert pack_linears(network(precision)) == before
    assert is_batch_invariant(before) == (precision == "int8")
    assert not is_batch_invariant({})


def test_shards_take_the_first_choice_that_all_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each layer, by rank; a rank may be on a machine of another kind."""
    ranks = [
        [("fma", "fma torch"), ("amx", "amx fma torch"), ("amx", "amx torch")],
        [("oneDNN", "fma oneDNN torch"), ("fma", "fma torch"), ("fma", "fma torch")],
    ]
    offers = [[KernelOffer(chosen, all_.split()) for chosen, all_ in rank] for rank in ranks]

    def gather(found: list[Sequence[KernelOffer]], own: Sequence[KernelOffer]) -> None:
        assert own == offers[1]
        found[:] = offers

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    assert agreed(offers[1]) == ["fma", "fma", "torch"]
