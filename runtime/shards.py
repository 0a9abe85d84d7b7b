"""A network as one of several shards, and the collectives between them.

Each iteration has two sums a layer, after attention and after the MLP, and one for the embedding.
The logits are gathered, so that every rank draws the same token. `torch.distributed` transports
them: gloo between CPUs, NCCL between GPUs.

`all_reduce` divides what it adds into pieces, each of which begins with another rank, so a row of a
larger batch may be added in another order. For rows that have to be the same in any batch the parts
of all ranks are gathered, and added in the order of the ranks. That sends shards / 2 times as much,
and is needed from three shards on.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from models.networks import Network, Part

Sum = Callable[[Tensor], Tensor]  # over ranks, of this one's part, which may be overwritten

TIMEOUT_S = 600.0  # of a collective, the first one included; heartbeats detect a loss much earlier


def join(rendezvous: str, part: Part, device: torch.device) -> None:
    """Waits for the other ranks at `rendezvous`, HOST:PORT, where rank 0 listens. A GPU must be the
    current device."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{rendezvous}",
        rank=part.rank,
        world_size=part.shards,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
        device_id=device if device.type == "cuda" else None,
    )


def connect(network: Network, part: Part, *, invariant: bool = False) -> None:
    """Replaces layers with partial results by layers that combine the parts of all ranks.
    `invariant`: in the same order whatever the number of rows is."""
    vocab_size = network.config.vocab_size
    total = in_order if invariant and part.shards > 2 else in_any_order
    blocks: Any = network.blocks
    for block in blocks:
        block.attn_proj = SummedLinear(block.attn_proj, total)
        block.mlp_proj = SummedLinear(block.mlp_proj, total)
    network.head = GatheredLinear(network.head, part.shards, vocab_size)  # type: ignore[assignment]
    network.wte = SplitEmbedding(network.wte, part.of(vocab_size).start)  # type: ignore[assignment]


def in_any_order(y: Tensor) -> Tensor:
    dist.all_reduce(y)
    return y


def in_order(y: Tensor) -> Tensor:
    total, *parts = _gathered(y, dist.get_world_size())
    for part in parts:
        total += part
    return total


def _gathered(y: Tensor, shards: int) -> list[Tensor]:
    parts = [torch.empty_like(y) for _ in range(shards)]
    dist.all_gather(parts, y)
    return parts


class SummedLinear(nn.Module):
    """A linear layer over some of the inputs; the sum over ranks is the layer's output."""

    def __init__(self, part: nn.Linear, total: Sum = in_any_order) -> None:
        super().__init__()
        self.bias = part.bias
        part.bias = None  # type: ignore[assignment]  # added once, after the sum
        self.part = part
        self._total = total

    def forward(self, x: Tensor) -> Tensor:
        y = self._total(self.part(x))
        # biases are float32 where weights are quantised
        return y if self.bias is None else (y + self.bias).to(y.dtype)


class SplitEmbedding(nn.Module):
    """An embedding of part of the vocabulary, from `first` on; zeros for other tokens."""

    def __init__(self, part: nn.Embedding, first: int) -> None:
        super().__init__()
        self.weight = part.weight
        self.first = first

    def forward(self, tokens: Tensor) -> Tensor:
        own = tokens - self.first
        absent = (own < 0) | (own >= len(self.weight))
        x = F.embedding(own.masked_fill(absent, 0), self.weight)
        x.masked_fill_(absent[..., None], 0)
        dist.all_reduce(x)
        return x


class GatheredLinear(nn.Module):
    """A linear layer `[N, in] -> [N, outputs]` with some of the outputs; all are gathered."""

    def __init__(self, part: nn.Linear, shards: int, outputs: int) -> None:
        super().__init__()
        self.part = part
        self.shards = shards
        self.outputs = outputs
        self.width = -(-outputs // shards)  # the last rank may have fewer

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        y = F.pad(y, (0, self.width - y.shape[-1])).contiguous()
        return torch.cat(_gathered(y, self.shards), dim=-1)[..., : self.outputs]
