"""What a decoder computes, in one frozen description, and what distinguishes the families; rotary
position embeddings: which angle each pair of a head's dimensions turns by, a position.

Su et al., "RoFormer" (2021); the scalings are those of `transformers`: linear (Chen et al., 2023),
yarn (Peng et al., 2023) and llama3. Dynamic scaling changes nothing up to the context of the
model, beyond which no sequence is served. Angles, sines and cosines are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SCALINGS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    base: float
    scaling: str = "default"  # one of SCALINGS
    factor: float = 1.0
    original: int = 0  # the context before scaling (yarn, llama3)
    low: float = 1.0  # llama3: low_freq_factor, high_freq_factor
    high: float = 4.0
    beta_fast: float = 32.0  # yarn: turns in the original context that bound the ramp
    beta_slow: float = 1.0
    truncated: bool = True  # whether the ramp's bounds are whole dimensions
    attention_factor: float | None = None  # yarn: of sines and cosines; None: from `factor`
    divisors: tuple[float, ...] | None = None  # of the frequencies, as a file gives them

    def frequencies(self, head_dim: int) -> Tensor:
        """Angles a position `[head_dim / 2]`."""
        powers = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        plain = 1.0 / self.base**powers
        if self.divisors is not None:
            return plain / torch.tensor(self.divisors)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "llama3":
            # short waves as they are, long ones divided by the factor, a mixture between
            turns = self.original / (2 * math.pi / plain)  # in the original context
            share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
            return (1 - share) * plain / self.factor + share * plain
        if self.scaling == "yarn":
            kept = 1 - self._ramp(head_dim)
            return plain / self.factor * (1 - kept) + plain * kept
        return plain

    def _ramp(self, head_dim: int) -> Tensor:
        """The share of each pair's frequency that is divided by the factor `[head_dim / 2]`."""

        def dimension(turns: float) -> float:
            length = self.original / (turns * 2 * math.pi)
            return head_dim * math.log(length) / (2 * math.log(self.base))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncated:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        high += 0.001 if low == high else 0
        return ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)

    @property
    def magnitude(self) -> float:
        """Of the turned vectors: yarn makes them longer."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def table(self, context: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions `[context, head_dim / 2]`."""
        angles = torch.arange(context).float()[:, None] * self.frequencies(head_dim)
        return angles.cos() * self.magnitude, angles.sin() * self.magnitude


def rotated(x: Tensor, cos: Tensor, sin: Tensor, scale: float = 1.0) -> Tensor:
    """x `[..., heads, D]`, by cosines and sines `[..., 1, D / 2]` of the positions. Dimensions i
    and i + D / 2 are a pair."""
    first, second = (x.float() if scale == 1.0 else x.float() * scale).chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x.dtype)


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
    shards: int = 1  # that share heads, the MLP's columns and the vocabulary (models/networks.py)


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
