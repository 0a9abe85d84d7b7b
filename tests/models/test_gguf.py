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
from transformers import Gemma3TextConfig, MistralConfig, Qwen2Config

from models.part import WHOLE, Part
from models.weights.gguf import GGUFSource
from models.weights.loader import load
from models.weights.source import CheckpointError
from runtime.cache import BlockTable
from runtime.linear.blocks import BlockLinear
from runtime.linear.quantised import BLOCK_LAYERS, block_embedding
from tests.models.families import _BASE, FAMILIES, logits_of, write
from tests.models.gguf_files import finish, random_blocks, write_gguf
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


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_type_of_weights_gives_the_logits_of_its_rounded_values(
    kind: str, tmp_path: Path
) -> None:
    path, peer = written(FAMILIES["llama"](), tmp_path, Kind[kind])
    ids = tokens_of(1, 90)
    assert (logits(path, ids) - logits_of(peer, ids)).abs().max() <= TOLERANCE


def k_file(path: Path, kind: Kind) -> dict[str, np.ndarray[Any, Any]]:
    """A network of one layer with random blocks, whose scales are finite; returns them."""
    width, rng = 256, np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (
        ("block_count", 1), ("context_length", 64), ("embedding_length", width),
        ("feed_forward_length", width), ("attention.head_count", 4),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    made = {}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        made[f"blk.0.{name}.weight"] = random_blocks(kind, width, width, 0.1, rng)
        writer.add_tensor(f"blk.0.{name}.weight", made[f"blk.0.{name}.weight"], raw_dtype=kind)
    writer.add_tensor("token_embd.weight", rng.normal(size=(64, width)).astype(np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    finish(writer)
    return made


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_types_are_dequantised(kind: str, tmp_path: Path) -> None:
    made = k_file(tmp_path / "k.gguf", Kind[kind])
    block: Any = load(GGUFSource(tmp_path / "k.gguf")).blocks[0]
    expected = gguf.quants.dequantize(made["blk.0.ffn_down.weight"], Kind[kind])
    assert np.isfinite(expected).all()
    assert torch.equal(block.mlp_proj.weight, torch.from_numpy(expected))
    gate, up = (
        torch.from_numpy(gguf.quants.dequantize(made[f"blk.0.{name}.weight"], Kind[kind]))
        for name in ("ffn_gate", "ffn_up")
    )
    assert torch.equal(block.gate_up.weight, torch.cat([gate, up]))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_weights_that_stay_quantised_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    path, _ = written(FAMILIES["llama-linear"](), tmp_path, Kind[kind])
    plain = load(GGUFSource(path))
    kept = load(GGUFSource(path), WHOLE, torch.float32, BLOCK_LAYERS, block_embedding)
    own = dict(kept.named_modules())
    for name, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear):
            layer = own[name]
            assert isinstance(layer, BlockLinear), name
            assert torch.allclose(layer.dequantised(), module.weight, atol=1e-6), name
    tokens = torch.tensor([3, 0, 306])
    assert torch.allclose(kept.wte(tokens), plain.wte(tokens), atol=1e-6)


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


def small(path: Path, architecture: str = "llama", **keys: int | float | str) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    whole = {
        "block_count": 1, "context_length": 64, "embedding_length": 32,
        "feed_forward_length": 32, "attention.head_count": 2,
    }  # fmt: skip
    for key, value in {**whole, **keys}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        name = key if key.startswith("split.") else f"{architecture}.{key}"
        add[type(value)](name, value)  # type: ignore[operator]
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
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
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    architecture: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small(tmp_path / "model.gguf", architecture, **keys)
    with pytest.raises(CheckpointError) as refused:
        load(GGUFSource(tmp_path / "model.gguf"))
    assert message in str(refused.value)
