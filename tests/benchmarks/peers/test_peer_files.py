"""What other engines read has the weights and the shape of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers.checkpoint import write_gguf
from benchmarks.peers.hub import write_folder
from models.networks import SHAPES, Config
from models.weights.folder import FolderSource
from models.weights.gguf import GGUFSource
from models.weights.source import RandomSource, WeightSource, shapes_of
from seams import LoadError

EVERYTHING = slice(None)
LAYERS = 6  # the last one of Gemma's has no window


def small(name: str) -> RandomSource:
    """A model of the shape `name` with fewer and narrower layers."""
    shape: Any = SHAPES[name]
    config: Config = replace(
        shape, vocab_size=96, context=64, n_layer=LAYERS, n_head=4, kv_heads=2, head_dim=32,
        n_embd=64, mlp_width=96, ropes=shape.ropes[:LAYERS], windows=shape.windows[:LAYERS],
    )  # fmt: skip
    return RandomSource(config, 3)


def unscaled(config: Any) -> Config:
    """Without the context that RoPE was trained for, which counts only where it is scaled."""
    ropes = [replace(r, original=0) if r.scaling == "default" else r for r in config.ropes]
    return replace(config, ropes=tuple(ropes))


def values(source: WeightSource, piece: str) -> torch.Tensor:
    return source.values(piece, EVERYTHING, EVERYTHING).float()


DECODERS = ["llama-3.2-1b", "smollm2-135m", "qwen3-0.6b", "gemma-3-270m"]


@pytest.mark.parametrize("changed", [{"family": "smollm3"}, {"windows": (7,) * LAYERS}])
def test_what_is_not_written_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    config: Config = replace(small("llama-3.2-1b").config, **changed)
    with pytest.raises(LoadError, match="written"):
        write_folder(RandomSource(config, 3), tmp_path)


@pytest.mark.parametrize("name", DECODERS)
def test_a_folder_has_the_weights_and_the_shape(name: str, tmp_path: Path) -> None:
    """As the server's reader finds them, which is compared with that of `transformers`."""
    source = small(name)
    write_folder(source, tmp_path)
    found = FolderSource(tmp_path)
    assert unscaled(found.config) == unscaled(source.config)
    for piece in shapes_of(source.config):
        assert torch.equal(values(found, piece), values(source, piece)), piece


def test_a_gguf_file_in_4_bits_has_its_head_in_8(tmp_path: Path) -> None:
    source = small("qwen3-0.6b")
    write_gguf(source, tmp_path / "model.gguf", "q4_0")
    found = GGUFSource(tmp_path / "model.gguf")
    kinds = {piece: found.storage(piece) for piece in shapes_of(source.config)}
    assert kinds["wte.weight"] == "q8_0"
    assert kinds["blocks.0.q.weight"] == kinds["blocks.5.mlp_proj.weight"] == "q4_0"
    assert kinds["blocks.0.ln_1.weight"] == "F32"
    for piece, allowed in (("blocks.0.q.weight", 0.02), ("wte.weight", 0.002), ("ln_f.weight", 0)):
        assert (values(found, piece) - values(source, piece)).abs().max() <= allowed, piece
