"""A decoder's weights as a folder in the Hugging Face layout, as its publishers distribute it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.description import Description, Rope
from models.gpt2 import GPTConfig
from models.weights.folder import tensor_of
from models.weights.source import WeightSource, shapes_of
from seams import LoadError

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
EVERYTHING = slice(None)


def write_folder(source: WeightSource, folder: Path) -> None:
    """`config.json` and `model.safetensors` in float32; quantised weights are dequantised. Raises
    LoadError."""
    config = source.config
    if isinstance(config, GPTConfig) or config.family not in CLASSES:
        raise LoadError(f"{source.place}: written here are {', '.join(CLASSES)}")
    fields = fields_of(config)
    tensors: dict[str, Tensor] = {}
    for piece, shape in shapes_of(config).items():
        values = torch.empty(shape)
        source.read(piece, EVERYTHING, EVERYTHING, values)
        tensor = tensor_of(piece, config)
        prefix = "" if tensor.name.startswith("lm_head") else "model."
        tensors[f"{prefix}{tensor.name}"] = values - tensor.added
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def fields_of(config: Description) -> dict[str, Any]:
    """A `config.json`, with RoPE's fields by the names that `transformers` 4 and 5 both read."""
    layers = [(r, w) for r, w in zip(config.ropes, config.windows, strict=True) if r is not None]
    if len(layers) < config.n_layer:
        raise LoadError("layers without RoPE are not written")
    whole = next((rope for rope, window in layers if window is None), layers[0][0])
    fields: dict[str, Any] = {
        "model_type": config.family,
        "architectures": [CLASSES[config.family]],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_size": config.n_embd,
        "intermediate_size": config.mlp_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "rope_theta": whole.base,
        "rope_scaling": _scaling(whole),
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    if config.family == "gemma3_text":
        local, window = next((rope, own) for rope, own in layers if own is not None)
        del fields["hidden_act"]
        fields |= {
            "sliding_window": window,
            "layer_types": [
                "full_attention" if own is None else "sliding_attention" for own in config.windows
            ],
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_local_base_freq": local.base,
            "query_pre_attn_scalar": round(config.head_dim / config.query_scale**2),
        }
    elif any(config.windows):
        raise LoadError(f"windows of {config.family} are not written")
    return fields


def _scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.divisors is not None or rope.scaling not in ("default", "llama3"):
        raise LoadError("RoPE has divisors of its own, or a scaling that is not written")
    if rope.scaling == "default":
        return None
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original,
        "low_freq_factor": rope.low,
        "high_freq_factor": rope.high,
    }
