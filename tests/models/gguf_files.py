"""GGUF files of the tiny checkpoints, written with the `gguf` package in llama.cpp's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ARCHITECTURES = {"gemma3_text": "gemma3"}  # others have the name of their model_type


def write_gguf(
    peer: Any, path: Path, kind: Kind = Kind.F32, others: Mapping[str, Kind] | None = None
) -> None:
    """Matrices become `kind`, but for `others`, and the peer gets the same rounded values."""
    config = peer.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())
    arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    state = peer.state_dict()
    for hub_name, tensor in state.items():
        if hub_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(hub_name, try_suffixes=(".weight", ".bias"))
        assert name is not None, hub_name
        values = as_stored(hub_name, tensor, architecture, config)
        of = (others or {}).get(name, kind) if values.ndim == 2 else Kind.F32
        if of in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):  # which the package cannot quantise
            data = random_blocks(of, values.shape[0], values.shape[1], 0.1)
        else:
            data = gguf.quants.quantize(values, of)
        writer.add_tensor(name, data, raw_dtype=of)
        if of != Kind.F32:
            rounded = torch.from_numpy(gguf.quants.dequantize(data, of))
            rows = torch.arange(len(tensor))[:, None]
            order = as_stored(hub_name, rows, architecture, config)[:, 0].astype(np.int64)
            state[hub_name][torch.from_numpy(order)] = rounded
    peer.load_state_dict(state)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_stored(name: str, tensor: Tensor, architecture: str, config: Any) -> np.ndarray[Any, Any]:
    if architecture in ("llama", "smollm3") and name.endswith(("q_proj.weight", "k_proj.weight")):
        is_query = name.endswith("q_proj.weight")
        heads = config.num_attention_heads if is_query else config.num_key_value_heads
        halves = tensor.view(heads, 2, -1, tensor.shape[1])
        tensor = halves.transpose(1, 2).reshape(tensor.shape)
    if architecture == "gemma3" and "norm" in name:
        tensor = tensor + 1
    return np.ascontiguousarray(tensor.numpy().astype(np.float32))


def random_blocks(kind: Kind, rows: int, columns: int, spread: float) -> np.ndarray[Any, Any]:
    """Every bit is random, but the float16 scales are finite and give the values the standard
    deviation `spread`."""
    rng = np.random.default_rng(rows + columns)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    # Q6_K has a scale at the end of a block, the others a scale and a minimum at its start
    place = slice(-2, None) if kind == Kind.Q6_K else slice(0, 4)
    scales = rng.uniform(-1, 1, (len(blocks), 2)).astype(np.float32)

    def scaled(by: float) -> np.ndarray[Any, Any]:
        stored = (scales * by).astype(np.float16).view(np.uint8)
        blocks[:, place] = stored[:, : blocks[:, place].shape[1]]
        return blocks.reshape(rows, -1)

    return scaled(spread / float(gguf.quants.dequantize(scaled(1.0), kind).std()))
