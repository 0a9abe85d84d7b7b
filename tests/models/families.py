"""Tiny random checkpoints of every family, written by `transformers`: widths that all differ,
scaled positions beyond the original context, windows smaller than a prompt, and norms that are not
ones, so that whatever is missed changes the logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # its classes are imported where they are used: shards need none
from torch import Tensor

VOCAB, CONTEXT = 307, 96
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def _rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **fields}}


FAMILIES: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(
        **_BASE,
        **_rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32),
    ),
    "llama-linear": lambda: transformers.LlamaConfig(
        **_BASE, head_dim=32, tie_word_embeddings=True, **_rope("linear", factor=4.0)
    ),
    "llama-yarn": lambda: transformers.LlamaConfig(
        **_BASE, **_rope("yarn", factor=4.0, original_max_position_embeddings=24)
    ),
    "llama-dynamic": lambda: transformers.LlamaConfig(**_BASE, **_rope("dynamic", factor=4.0)),
    "mistral": lambda: transformers.MistralConfig(**_BASE, head_dim=32, sliding_window=7),
    "smollm3": lambda: transformers.SmolLM3Config(**_BASE | {"num_hidden_layers": 5}),
    "qwen2": lambda: transformers.Qwen2Config(
        **_BASE, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_BASE, head_dim=48),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_BASE | {"num_hidden_layers": 7}, head_dim=32, sliding_window=5,
        query_pre_attn_scalar=20,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
}  # fmt: skip


def gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=64, n_layer=3, n_head=4,
        initializer_range=0.2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


CONFIGS = {"gpt2": gpt2, **FAMILIES}


def random_peer(config: Any) -> Any:
    """A model of `transformers` in float32."""
    torch.manual_seed(11)
    peer = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.dim() == 1:  # norms, and the biases of Qwen 2.5
                parameter.normal_(0.0 if "gemma" in config.model_type else 0.7, 0.3)
    return peer


def write(config: Any, folder: Path) -> Any:
    peer = random_peer(config)
    peer.save_pretrained(folder)
    return peer


def write_all(factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    folders = {name: factory.mktemp(name) for name in CONFIGS}
    return {name: (folder, write(CONFIGS[name](), folder)) for name, folder in folders.items()}


@torch.no_grad()
def logits_of(peer: Any, ids: list[int]) -> Tensor:
    logits: Tensor = peer(torch.tensor([ids])).logits[0]
    return logits
