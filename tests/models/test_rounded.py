"""Types of GGUF files that no layer computes become 8 bits with a scale for each 32 inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from models.part import WHOLE, Part
from models.weights.gguf import GGUFSource
from models.weights.loader import held_bytes, load
from models.weights.source import CHUNK_VALUES
from runtime.linear.blocks import BlockLinear
from runtime.linear.quantised import BLOCK_LAYERS, block_embedding
from tests.models.families import FAMILIES
from tests.models.test_gguf import written


def kept(path: Path, part: Part = WHOLE) -> Any:
    return load(GGUFSource(path), part, torch.float32, BLOCK_LAYERS, block_embedding)


def rounded(weights: torch.Tensor) -> torch.Tensor:
    values = gguf.quants.quantize(weights.numpy(), Kind.Q8_0)
    return torch.from_numpy(gguf.quants.dequantize(values, Kind.Q8_0))


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1"])
def test_every_linear_layer_is_that_of_the_gguf_package(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind[kind])
    plain, whole = load(GGUFSource(path)), kept(path)
    monkeypatch.setattr("models.weights.loader.CHUNK_VALUES", CHUNK_VALUES // 2**18)
    by_chunks = dict(kept(path).named_modules())
    own = dict(whole.named_modules())
    for name, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert isinstance(own[name], BlockLinear), name
            assert own[name].kind == "q8_0"
            assert torch.equal(own[name].dequantised(), rounded(module.weight)), name
            assert torch.equal(own[name].panels, by_chunks[name].panels), name


def test_a_layer_of_several_types_is_rounded_and_others_stay(tmp_path: Path) -> None:
    """As in files of llama.cpp's mixtures, whose values have more bits than queries and keys."""
    others = {"blk.0.attn_v.weight": Kind.Q5_1}
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind.Q4_1, **others)
    plain: Any = load(GGUFSource(path))
    network = kept(path)
    assert [network.blocks[layer].qkv.kind for layer in (0, 1)] == ["q8_0", "q4_1"]
    assert network.blocks[0].gate_up.kind == "q4_1"
    assert torch.equal(network.blocks[0].qkv.dequantised(), rounded(plain.blocks[0].qkv.weight))


def test_the_sum_of_memory_counts_what_they_become(tmp_path: Path) -> None:
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind.Q5_0)
    source, network = GGUFSource(path), kept(path)
    panels = {id(p): p for p in network.buffers()}
    norms = sum(p.numel() * 4 for p in network.parameters())
    held = sum(p.numel() for p in panels.values()) + norms
    counted = held_bytes(source, WHOLE, torch.float32, BLOCK_LAYERS)
    assert counted <= held <= 1.1 * counted, "panels are padded to whole ones"
