"""The decoders of Llama's kind, driven by a description: RMSNorm, RoPE, grouped-query attention and
a gated MLP.

The interface is that of `models/gpt2.py`: layers act on the last axis only, and attention, the one
operation that distinguishes requests, is passed in as `attend`. Norms and rotations are computed in
float32, and the norms' weights are float32 whatever the type of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.description import Description, Rope, rotated
from models.gpt2 import Attend, embedding

Turns = tuple[Tensor, Tensor] | None  # cosines and sines of the tokens `[..., 1, head_dim / 2]`


class RMSNorm(nn.Module):
    """Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class AddRMSNorm(RMSNorm):
    """A residual sum and its norm, one module so that a backend may fuse the two."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = x + y
        return x, super().forward(x)


class Gated(nn.Module):
    """The product of a gate's activation and the values beside it, `[..., 2 * n]` -> `[..., n]`."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        if self.activation == "silu":
            return F.silu(gate) * up
        return F.gelu(gate, approximate="tanh") * up


class Rotation(nn.Module):
    """Queries and keys after their norms, turned by their positions, one module so that a backend
    may fuse all of it."""

    def __init__(self, query_scale: float) -> None:
        super().__init__()
        self.query_scale = query_scale

    def forward(
        self, q: Tensor, k: Tensor, turns: Turns, q_norm: RMSNorm | None, k_norm: RMSNorm | None
    ) -> tuple[Tensor, Tensor]:
        if q_norm is not None and k_norm is not None:
            q, k = q_norm(q), k_norm(k)
        if turns is not None:
            q, k = rotated(q, *turns, scale=self.query_scale), rotated(k, *turns)
        return q, k


class DecoderBlock(nn.Module):
    def __init__(self, of: Description) -> None:
        super().__init__()
        self.head_dim = of.head_dim
        heads, kv_heads = of.n_head // of.shards, of.kv_heads // of.shards
        self.heads = [heads, kv_heads, kv_heads]  # of queries, keys and values
        mlp_width = of.mlp_width // of.shards
        self.ln_1 = AddRMSNorm(of.n_embd, of.norm_eps)
        self.qkv = nn.Linear(of.n_embd, sum(self.heads) * of.head_dim, bias=of.qkv_bias)
        self.q_norm = RMSNorm(of.head_dim, of.norm_eps) if of.qk_norms else None
        self.k_norm = RMSNorm(of.head_dim, of.norm_eps) if of.qk_norms else None
        self.rotation = Rotation(of.query_scale)
        self.attn_proj = nn.Linear(heads * of.head_dim, of.n_embd, bias=False)
        self.attn_norm = RMSNorm(of.n_embd, of.norm_eps) if of.norms_after else None
        self.ln_2 = AddRMSNorm(of.n_embd, of.norm_eps)
        self.gate_up = nn.Linear(of.n_embd, 2 * mlp_width, bias=False)
        self.gated = Gated(of.activation)
        self.mlp_proj = nn.Linear(mlp_width, of.n_embd, bias=False)
        self.mlp_norm = RMSNorm(of.n_embd, of.norm_eps) if of.norms_after else None

    def forward(
        self,
        x: Tensor,
        normed: Tensor,
        layer: int,
        attend: Attend,
        turns: Turns,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`normed`: `ln_1` of x; `kept`: as of Decoder. Returns two summands."""
        heads = self.qkv(normed).view(*normed.shape[:-1], -1, self.head_dim)
        q, k, v = heads.split_with_sizes(self.heads, -2)
        q, k = self.rotation(q, k, turns, self.q_norm, self.k_norm)
        y = attend(layer, q, k, v).flatten(-2)
        if kept is not None:
            x, y = x.index_select(0, kept), y.index_select(0, kept)
            if not len(kept):
                return x, x
        y = self.attn_proj(y)
        x, normed = self.ln_2(x, y if self.attn_norm is None else self.attn_norm(y))
        y = self.mlp_proj(self.gated(self.gate_up(normed)))
        return x, y if self.mlp_norm is None else self.mlp_norm(y)


class Decoder(nn.Module):
    """Turns tokens and positions into final hidden states; `head` turns these into logits."""

    def __init__(self, config: Description) -> None:
        super().__init__()
        self.config = config
        self.wte = embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.n_layer))
        self.ln_f = AddRMSNorm(config.n_embd, config.norm_eps)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.wte.weight
        self._tables: dict[Rope, tuple[Tensor, Tensor]] = {}

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, kept: Tensor | None = None
    ) -> Tensor:
        """tokens, positions: int64 `[...]` -> hidden `[..., n_embd]`. `kept`: as of `GPT`."""
        x = self.wte(tokens)
        if self.config.embeddings_scaled:
            root = torch.tensor(self.config.n_embd**0.5, dtype=x.dtype)  # rounded as the weights
            x = x * root.item()
        turns = self._turns(positions, x.device)
        y = torch.zeros_like(x)
        blocks = cast("list[DecoderBlock]", list(self.blocks))  # indexing a ModuleList is slow
        for layer, (block, turn) in enumerate(zip(blocks, turns, strict=True)):
            x, normed = block.ln_1(x, y)
            last = layer == len(blocks) - 1
            x, y = block(x, normed, layer, attend, turn, kept if last else None)
        hidden: Tensor
        _, hidden = self.ln_f(x, y)
        return hidden

    def _turns(self, positions: Tensor, device: torch.device) -> Sequence[Turns]:
        """Of each layer; looked up, so that a position's angles depend on nothing beside it."""
        found: dict[Rope | None, Turns] = {None: None}
        for rope in self.config.ropes:
            if rope is not None and rope not in found:
                if rope not in self._tables:
                    cos, sin = rope.table(self.config.context, self.config.head_dim)
                    self._tables[rope] = cos.to(device), sin.to(device)
                cos, sin = self._tables[rope]
                found[rope] = (
                    F.embedding(positions, cos)[..., None, :],
                    F.embedding(positions, sin)[..., None, :],
                )
        return [found[rope] for rope in self.config.ropes]
