"""GGUF files give the logits of `transformers`, in every type of weights, whole and in parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config

from models.networks import WHOLE, Part
from models.weights.gguf import GGUFSource
from models.weights.loader import held_bytes, load
from models.weights.source import CHUNK_VALUES
from runtime.cache import BlockTable
from runtime.linear.blocks import BlockEmbedding, BlockLinear
from runtime.linear.layers import BLOCK_LAYERS
from seams import LoadError
from tests.models.families import _BASE, FAMILIES, logits_of, write
from tests.models.gguf_files import finish, write_gguf
from tests.models.test_decoder import BLOCKS, TOLERANCE, computed, pool_of, tokens_of

WRITTEN: dict[str, Callable[[], Any]] = {
    **{name: FAMILIES[name] for name in ("llama", "llama-linear", "llama-yarn")},
    **{name: FAMILIES[name] for name in ("smollm3", "qwen3")},
    "mistral": lambda: MistralConfig(**_BASE, head_dim=32, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_BASE),
    "gemma3": lambda: Gemma3TextConfig(
        **_BASE | {"num_hidden_layers": 7}, head_dim=32, sliding_window=5,
        query_pre_attn_scalar=32,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
}  # fmt: skip


def written(config: Any, folder: Path, kind: Kind = Kind.F32, **others: Kind) -> tuple[Path, Any]:
    peer = write(config, folder)
    if peer.config.model_type == "mistral":
        peer.config.model_type = "llama"  # as the converter names it
    write_gguf(peer, folder / "model.gguf", kind, others)
    return folder / "model.gguf", peer


def logits(path: Path, ids: list[int]) -> torch.Tensor:
    network = load(GGUFSource(path))
    return computed(network, pool_of(network, 1), [(ids, 0, 90)], [BlockTable(range(BLOCKS))])


@pytest.mark.parametrize("name", WRITTEN)
def test_every_family_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    path, peer = written(WRITTEN[name](), tmp_path)
    ids = tokens_of(1, 90)
    assert (logits(path, ids) - logits_of(peer, ids)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
)
def test_every_type_of_weights_gives_the_logits_of_its_values(kind: str, tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512} if kind.endswith("K") else {}
    path, peer = written(LlamaConfig(**_BASE | wide), tmp_path, Kind[kind])
    ids = tokens_of(1, 90)
    assert (logits(path, ids) - logits_of(peer, ids)).abs().max() <= TOLERANCE


def kept(path: Path) -> Any:
    """Weights stay as they are stored. Types that no layer computes become 8 bits with a scale for
    each 32 inputs."""
    return load(GGUFSource(path), WHOLE, torch.float32, BLOCK_LAYERS, BlockEmbedding)


def rounded(weights: torch.Tensor) -> torch.Tensor:
    values = gguf.quants.quantize(weights.numpy(), Kind.Q8_0)
    return torch.from_numpy(gguf.quants.dequantize(values, Kind.Q8_0))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_linear_layer_stays_quantised_and_is_that_of_the_gguf_package(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind[kind])
    plain, whole = load(GGUFSource(path)), kept(path)
    monkeypatch.setattr("models.weights.loader.CHUNK_VALUES", CHUNK_VALUES // 2**18)
    by_chunks = dict(kept(path).named_modules())
    own = dict(whole.named_modules())
    is_rounded = kind.startswith("Q5")

    def expected(weights: torch.Tensor) -> torch.Tensor:
        return rounded(weights) if is_rounded else weights

    for name, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear):
            layer = own[name]
            assert isinstance(layer, BlockLinear), name
            assert layer.kind == ("q8_0" if is_rounded else kind.lower())
            error = (layer.dequantised() - expected(module.weight)).abs().max()
            assert error <= (0 if is_rounded else 1e-6), name
            assert torch.equal(layer.panels, by_chunks[name].panels), name
    tokens = torch.tensor([3, 0, 306])
    assert torch.allclose(whole.wte(tokens), expected(plain.wte.weight)[tokens], atol=1e-6)
    panels = {id(p): p for p in whole.buffers()}
    norms = sum(p.numel() * 4 for p in whole.parameters())
    held = sum(p.numel() for p in panels.values()) + norms
    counted = held_bytes(GGUFSource(path), WHOLE, torch.float32, BLOCK_LAYERS)
    assert counted <= held <= 1.1 * counted, "panels are padded to whole ones"


def test_a_layer_of_several_types_is_rounded_and_others_stay(tmp_path: Path) -> None:
    """As in files of llama.cpp's mixtures, whose values have more bits than queries and keys."""
    others = {"blk.0.attn_v.weight": Kind.Q5_1}
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind.Q4_1, **others)
    plain: Any = load(GGUFSource(path))
    network = kept(path)
    assert [network.blocks[layer].qkv.kind for layer in (0, 1)] == ["q8_0", "q4_1"]
    assert network.blocks[0].gate_up.kind == "q4_1"
    assert torch.equal(network.blocks[0].qkv.dequantised(), rounded(plain.blocks[0].qkv.weight))


@pytest.mark.parametrize("kind", ["F16", "Q5_0"])
def test_a_shard_has_its_part_of_the_whole(kind: str, tmp_path: Path) -> None:
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind[kind])
    whole: Any = load(GGUFSource(path)).blocks[1]
    parts: list[Any] = [load(GGUFSource(path), Part(rank, 2)).blocks[1] for rank in range(2)]
    q, k, v = whole.qkv.weight.split([heads * whole.head_dim for heads in whole.heads])
    halves = [[w.chunk(2)[rank] for w in (q, k, v)] for rank in range(2)]
    for part, own in zip(parts, halves, strict=True):
        assert torch.equal(part.qkv.weight, torch.cat(own))
    for name in ("attn_proj", "mlp_proj"):
        both = torch.cat([getattr(part, name).weight for part in parts], dim=1)
        assert torch.equal(both, getattr(whole, name).weight)


def test_columns_that_divide_no_block_stay_quantised_in_shards(tmp_path: Path) -> None:
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind.Q4_1)
    source = GGUFSource(path)
    half = source.raw("blocks.0.attn_proj.weight", slice(None), slice(64, 128))
    assert half is not None
    values = source.values("blocks.0.attn_proj.weight", slice(None), slice(64, 128))
    assert torch.allclose(BlockLinear.of(half.kind, half.data).dequantised(), values, atol=1e-6)
    assert source.raw("blocks.0.attn_proj.weight", slice(None), slice(0, 48)) is None


def small(
    path: Path, architecture: str = "llama", only: str = "token_embd", **keys: int | float | str
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    whole = {
        "block_count": 1, "context_length": 64, "embedding_length": 32,
        "feed_forward_length": 32, "attention.head_count": 2,
    }  # fmt: skip
    for key, value in {**whole, **keys}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        name = key if key.startswith("split.") else f"{architecture}.{key}"
        add[type(value)](name, value)  # type: ignore[operator]
    writer.add_tensor(f"{only}.weight", np.zeros((64, 32), np.float32))
    finish(writer)


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("mamba", {}, "general.architecture is 'mamba', supported: llama, mistral, smollm3"),
        ("llama", {"expert_count": 8}, "llama.expert_count is 8, and this key is not supported"),
        ("llama", {"rope.dimension_count": 8}, "rope.dimension_count is 8, supported here: 16"),
        ("llama", {"rope.scaling.type": "longrope"}, "RoPE scaling is 'longrope', supported"),
        ("llama", {"split.count": 3}, "split.count is 3, supported: 1"),
        ("llama", {}, "tensors are missing: blocks.0"),
        ("llama", {"only": "output"}, "tensor 'token_embd.weight' is missing"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    architecture: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small(tmp_path / "model.gguf", architecture, **keys)
    with pytest.raises(LoadError) as refused:
        load(GGUFSource(tmp_path / "model.gguf"))
    assert message in str(refused.value)
