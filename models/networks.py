"""The networks that are served, as one type, the shapes of published ones, and which share of a
network one of several shards holds.

Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019, section 3): attention heads and the columns
of the MLP are split, and so is the vocabulary, for the embedding and for the head; every shard has
the norms, positions and biases after a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from models.decoder import Decoder
from models.description import LOCAL_ROPE_BASE, WINDOW_PATTERN, Description, Rope
from models.gpt2 import GPT, GPTConfig
from seams import LoadError

Config = GPTConfig | Description
Network = GPT | Decoder


def make(config: Config) -> Network:
    """A network of this shape; a shard's part of it if `config.shards` says so."""
    return GPT(config) if isinstance(config, GPTConfig) else Decoder(config)


def limit_context(network: Network, tokens: int) -> None:
    """From now on no position beyond is planned for."""
    config: Any = replace(network.config, context=tokens)
    network.config = config


def count_parameters(config: Config) -> int:
    """Of the whole network, however many shards share it."""
    with torch.device("meta"):
        return sum(p.numel() for p in make(replace(config, shards=1)).parameters())


# by the names that `random:NAME` takes
_GPT2 = GPTConfig(vocab_size=50257, context=1024, n_layer=12, n_head=12, n_embd=768)
GPT2_SHAPES: dict[str, GPTConfig] = {
    "gpt2": _GPT2,
    "gpt2-medium": replace(_GPT2, n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": replace(_GPT2, n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": replace(_GPT2, n_layer=48, n_head=25, n_embd=1600),
}
_LLAMA3_ROPE = Rope(5e5, "llama3", factor=32.0, original=8192)
_GEMMA_LAYERS = [(i + 1) % WINDOW_PATTERN > 0 for i in range(18)]  # whether it has a window
SHAPES: dict[str, Config] = {
    **GPT2_SHAPES,
    "llama-3.2-1b": Description(
        "llama", vocab_size=128_256, context=131_072, n_layer=16, n_head=32, kv_heads=8,
        head_dim=64, n_embd=2048, mlp_width=8192, norm_eps=1e-5, tied=True,
        ropes=(_LLAMA3_ROPE,) * 16, windows=(None,) * 16,
    ),
    "smollm2-135m": Description(
        "llama", vocab_size=49_152, context=8192, n_layer=30, n_head=9, kv_heads=3, head_dim=64,
        n_embd=576, mlp_width=1536, norm_eps=1e-5, tied=True, ropes=(Rope(1e5),) * 30,
        windows=(None,) * 30,
    ),
    "qwen3-0.6b": Description(
        "qwen3", vocab_size=151_936, context=40_960, n_layer=28, n_head=16, kv_heads=8,
        head_dim=128, n_embd=1024, mlp_width=3072, norm_eps=1e-6, tied=True,
        ropes=(Rope(1e6),) * 28, windows=(None,) * 28, qk_norms=True,
    ),
    "gemma-3-270m": Description(
        "gemma3_text", vocab_size=262_144, context=32_768, n_layer=18, n_head=4, kv_heads=1,
        head_dim=256, n_embd=640, mlp_width=2048, norm_eps=1e-6, tied=True,
        ropes=tuple(Rope(LOCAL_ROPE_BASE if local else 1e6) for local in _GEMMA_LAYERS),
        windows=tuple(512 if local else None for local in _GEMMA_LAYERS),
        activation="gelu_tanh", qk_norms=True, norms_after=True, embeddings_scaled=True,
        overflows_float16=True,
    ),
}  # fmt: skip


# pieces by the last part of their layer's name (models/weights/source.py)
_BY_OUTPUTS = {"wte", "head", "q", "k", "v", "fc", "gate", "up"}
_BY_INPUTS = {"attn_proj", "mlp_proj"}
Cut = tuple[slice, slice]  # rows and columns; of a vector the columns mean nothing
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Part:
    rank: int = 0
    shards: int = 1

    def check(self, config: Config) -> None:
        """Raises LoadError."""
        split = {"attention heads": config.n_head, "heads of keys": config.kv_heads}
        for what, count in {**split, "columns of the MLP": config.mlp_width}.items():
            if count % self.shards:
                fewest = min(split.values())
                allowed = ", ".join(
                    str(n)
                    for n in range(1, fewest + 1)
                    if not any(c % n for c in (*split.values(), config.mlp_width))
                )
                raise LoadError(
                    f"{count} {what} cannot be split over {self.shards} shards; allowed: {allowed}"
                )

    def of(self, total: int) -> slice:
        """The consecutive share of so many; the last shard's may be smaller."""
        width = -(-total // self.shards)
        return slice(min(self.rank * width, total), min((self.rank + 1) * width, total))

    def cut(self, piece: str, shape: Sequence[int]) -> Cut:
        """The share of a piece of the whole network, `[out, in]` or `[out]`."""
        layer, _, kind = piece.rpartition(".")
        layer = layer.rpartition(".")[2]
        if layer in _BY_OUTPUTS:
            return self.of(shape[0]), ALL
        if layer in _BY_INPUTS and kind == "weight":
            return ALL, self.of(shape[1])
        return ALL, ALL


WHOLE = Part()
