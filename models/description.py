"""What a decoder computes, in one frozen description, and what distinguishes the families."""

from __future__ import annotations

from dataclasses import dataclass

from models.rope import Rope


@dataclass(frozen=True, slots=True)
class Description:
    family: str
    vocab_size: int
    context: int  # positions the model was made for
    n_layer: int
    n_head: int
    kv_heads: int
    head_dim: int
    n_embd: int
    mlp_width: int
    norm_eps: float
    tied: bool  # the head is the embedding
    ropes: tuple[Rope | None, ...]  # of each layer; None: positions do not enter
    windows: tuple[int | None, ...]  # of each layer: positions a token attends to; None: all
    activation: str = "silu"  # of the MLP's gate: silu or gelu_tanh
    qkv_bias: bool = False
    qk_norms: bool = False  # of each head's queries and keys
    norms_after: bool = False  # of what attention and MLP add, besides those before them
    embeddings_scaled: bool = False  # by the root of their width
    query_scale: float = 1.0  # of the scores, besides 1 / root of head_dim
    overflows_float16: bool = False
    shards: int = 1  # that share heads, the MLP's columns and the vocabulary (models/part.py)


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes one `model_type` from Llama."""

    name: str  # for people
    qkv_bias: bool = False
    qk_norms: bool = False
    rope_base: float = 10_000.0
    tied: bool = False
    kv_heads: int | None = None  # where the file names none; None: as many as heads
    head_dim: int | None = None  # None: width / heads
    windowed: str = "never"  # always, if asked by use_sliding_window, or by layer
    window: int | None = None  # where the file names none
    skips_rope: bool = False  # no_rope_layers
    gemma: bool = False  # norms 1 + w, four of them a layer, scaled embeddings, GeGLU


FAMILIES = {
    "llama": Family("Llama 3.x, SmolLM2"),
    "mistral": Family("Mistral", kv_heads=8, windowed="always", window=4096),
    "smollm3": Family("SmolLM3", rope_base=2e6, tied=True, windowed="asked", skips_rope=True),
    "qwen2": Family("Qwen2.5", qkv_bias=True, windowed="asked", window=4096),
    "qwen3": Family("Qwen3", qk_norms=True, head_dim=128, windowed="asked", window=4096),
    "gemma3_text": Family(
        "Gemma 3 text", qk_norms=True, rope_base=1e6, tied=True, kv_heads=4, head_dim=256,
        windowed="by layer", window=4096, gemma=True,
    ),
}  # fmt: skip
LOCAL_ROPE_BASE = 10_000.0  # Gemma 3's layers with a window
WINDOW_PATTERN = 6  # Gemma 3: every sixth layer has no window
NO_ROPE_INTERVAL = 4  # SmolLM3: every fourth layer has no positions
