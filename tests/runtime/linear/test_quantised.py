"""Checkpoints with int8 weights: their format says what they hold, and what is not computed here is
refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from model_server.quantise import quantise
from models.gpt2 import GPT, GPTConfig, causal_attention, init_weights
from models.networks import Part
from models.weights.loader import load_network, save_checkpoint
from runtime.linear.layers import INT8_LAYERS
from seams import LoadError

CONFIG = GPTConfig(vocab_size=31, context=16, n_layer=2, n_head=6, n_embd=24)  # 31 is odd
TOKENS = torch.arange(16).view(1, -1)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    network = GPT(CONFIG)
    init_weights(network, 0)
    torch.manual_seed(0)
    for parameter in network.parameters():  # biases, too
        torch.nn.init.normal_(parameter, std=0.2)
    save_checkpoint(network, tmp_path / "original", torch.float32)
    return tmp_path / "original"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    quantise(str(original), tmp_path / "int8")
    return tmp_path / "int8"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def scheme(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@torch.no_grad()
def logits_of(folder: Path) -> torch.Tensor:
    network = load_network(str(folder))
    positions = torch.arange(TOKENS.shape[1]).expand_as(TOKENS)
    logits: torch.Tensor = network.head(network(TOKENS, positions, causal_attention).flatten(0, 1))
    return logits


@torch.no_grad()
def test_in_float32_its_weights_are_its_integers_times_their_scales(
    folder: Path, tmp_path: Path
) -> None:
    """Computed by `transformers`, from the file by its format alone."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_scale")]:
        weight = name.removesuffix("_scale")
        assert tensors[weight].dtype == torch.int8
        tensors[weight] = tensors[weight] * tensors.pop(name).T  # [in, out] * [1, out]
    plain = tmp_path / "plain"
    plain.mkdir()
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    (plain / "config.json").write_text((folder / "config.json").read_text())
    change(plain, quantization_config=None)
    peer = GPT2LMHeadModel.from_pretrained(plain).eval()
    assert (peer(TOKENS).logits[0] - logits_of(folder)).abs().max() < 1e-4


@pytest.mark.parametrize("what", ["int8", "original"])
def test_shards_have_the_whole_networks_integers_and_scales(folder: Path, what: str) -> None:
    of = folder.parent / what
    whole: Any = load_network(of, stored=INT8_LAYERS)
    parts: list[Any] = [
        load_network(of, part=Part(rank, 3), stored=INT8_LAYERS) for rank in range(3)
    ]
    for name, axis in [("fc", 0), ("attn_proj", 1), ("mlp_proj", 1)]:
        own = [getattr(part.blocks[1], name) for part in parts]
        wanted = getattr(whole.blocks[1], name)
        assert torch.equal(torch.cat([layer.weight for layer in own], axis), wanted.weight)
        scales = torch.cat([layer.scale for layer in own]) if name == "fc" else own[-1].scale
        assert torch.equal(scales, wanted.scale)


def test_a_checkpoint_of_the_same_format_from_elsewhere_is_read(folder: Path) -> None:
    """With scales in 16 bits, other names of the same tensors, and what else its tools write."""
    expected = logits_of(folder)
    tensors = load_file(folder / "model.safetensors")
    bare = {
        name.removeprefix("transformer."): tensor.bfloat16() if "scale" in name else tensor
        for name, tensor in tensors.items()
    }
    save_file(bare, folder / "model.safetensors")
    said = scheme(folder)
    said["config_groups"]["group_0"]["weights"] |= {"observer": "minmax", "group_size": None}
    change(folder, quantization_config={**said, "global_compression_ratio": None})
    assert (logits_of(folder) - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["format"], "pack-quantized", "format is 'pack-quantized', allowed"),
        (["config_groups", "group_0", "weights", "num_bits"], 4, "num_bits is 4, allowed: 8"),
        (["config_groups", "group_0", "input_activations"], None, "is None, allowed: an object"),
    ],
)
def test_another_way_to_quantise_is_refused_by_name(
    folder: Path, place: list[str], value: Any, message: str
) -> None:
    within = said = scheme(folder)
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = value
    change(folder, quantization_config=said)
    with pytest.raises(LoadError, match=message):
        load_network(folder)
