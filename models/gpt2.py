"""GPT-2 in the style of nanoGPT: the whole network, without batching or caching.

Linear layers, norms and embeddings act on the last axis only, so the same forward serves
a rectangle of rows `[B, T]` and a ragged pack of tokens `[N]` ("selective batching", Orca,
OSDI '22, section 4.2). Attention is the only operation that distinguishes requests; it is passed
in as `attend`.

Architecture: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# (layer, q, k, v) -> y, all [..., n_head, head_dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class GPTConfig:
    vocab_size: int
    context: int  # positions the model was trained for
    n_layer: int
    n_head: int
    n_embd: int
    norm_eps: float = 1e-5
    gelu: str = "tanh"  # torch's name of the approximation; GPT-2 uses tanh
    shards: int = (
        1  # that share the heads, the MLP's columns and the vocabulary (models/networks.py)
    )

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    # what is fixed in GPT-2, by the names of models.description.Description
    tied: ClassVar = True
    overflows_float16: ClassVar = False

    @property
    def kv_heads(self) -> int:
        return self.n_head

    @property
    def mlp_width(self) -> int:
        return 4 * self.n_embd

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None,) * self.n_layer


class GeluLinear(nn.Linear):
    """A linear layer and its activation, one module so that a backend may fuse the two."""

    def __init__(self, in_features: int, out_features: int, approximate: str) -> None:
        super().__init__(in_features, out_features)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(super().forward(x), approximate=self.approximate)


class AddNorm(nn.LayerNorm):
    """A residual sum and its norm, one module so that a backend may fuse the two."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = x + y
        # without the layers of Python around it, which take longer than a single row
        return x, torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def embedding(entries: int, width: int) -> nn.Embedding:
    """Values are drawn for real memory only: on the meta device that imports 150 MB of Python."""
    values = torch.empty(entries, width)
    return nn.Embedding(entries, width, _weight=values if values.is_meta else values.normal_())


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        c, own = config.n_embd, config.n_embd // config.shards
        self.n_head, self.head_dim = config.n_head // config.shards, config.head_dim
        self.ln_1 = AddNorm(c, eps=config.norm_eps)
        self.qkv = nn.Linear(c, 3 * own)
        self.attn_proj = nn.Linear(own, c)
        self.ln_2 = AddNorm(c, eps=config.norm_eps)
        self.fc = GeluLinear(c, 4 * own, config.gelu)
        self.mlp_proj = nn.Linear(4 * own, c)

    def forward(
        self, x: Tensor, normed: Tensor, layer: int, attend: Attend, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`normed`: `ln_1` of x; `kept`: as of GPT. Returns two summands."""
        # [..., C] -> three of [..., n_head, head_dim]
        q, k, v = self.qkv(normed).unflatten(-1, (3, self.n_head, self.head_dim)).unbind(-3)
        y = attend(layer, q, k, v).flatten(-2)
        if kept is not None:
            x, y = x.index_select(0, kept), y.index_select(0, kept)
            if not len(kept):
                return x, x
        x, normed = self.ln_2(x, self.attn_proj(y))
        return x, self.mlp_proj(self.fc(normed))


class GPT(nn.Module):
    """Turns tokens and positions into final hidden states; `head` turns these into logits."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = embedding(config.vocab_size, config.n_embd)
        self.wpe = embedding(config.context, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = AddNorm(config.n_embd, eps=config.norm_eps)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.wte.weight  # tied, as in GPT-2

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, kept: Tensor | None = None
    ) -> Tensor:
        """tokens, positions: int64 `[...]` -> hidden `[..., n_embd]`.

        `kept` `[K]`, None: all: places on a flat axis whose hidden states are returned. No token
        attends to what the last block computes after its attention, so it computes that for these
        places only."""
        blocks = cast("list[Block]", list(self.blocks))  # indexing a ModuleList is slow
        x, normed = blocks[0].ln_1(self.wte(tokens), self.wpe(positions))
        for layer, (block, after) in enumerate(pairwise(blocks)):
            x, normed = after.ln_1(*block(x, normed, layer, attend))
        hidden: Tensor
        _, hidden = self.ln_f(*blocks[-1](x, normed, len(blocks) - 1, attend, kept))
        return hidden


def init_weights(network: GPT, seed: int) -> None:
    """GPT-2's initialisation: normal(0, 0.02), residual projections scaled by 1/sqrt(2 n_layer)."""
    generator = torch.Generator().manual_seed(seed)
    residual_std = 0.02 / (2 * network.config.n_layer) ** 0.5
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, 1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        else:
            std = residual_std if "_proj" in name else 0.02
            nn.init.normal_(parameter, 0.0, std, generator=generator)


def causal_attention(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every row from its start, without a cache, for training. `[B, T, H, D]` in and out."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, T, D]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
