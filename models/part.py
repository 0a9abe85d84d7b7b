"""Which share of a network one of several shards holds: tensor parallelism.

Attention heads and the columns of the MLP are split, and so is the vocabulary, for the embedding
and for the head; every shard has the norms, positions and biases after a sum (Shoeybi et al.,
"Megatron-LM", 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.gpt2 import GPTConfig


class PartError(ValueError):
    """A network that cannot be split this way; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Part:
    rank: int = 0
    shards: int = 1

    def check(self, config: GPTConfig) -> None:
        """Raises PartError."""
        heads = config.n_head
        if heads % self.shards:
            allowed = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise PartError(
                f"{heads} attention heads cannot be split over {self.shards} shards; allowed: "
                f"{allowed}"
            )

    def of(self, total: int) -> slice:
        """The consecutive share of so many; the last shard's may be smaller."""
        width = -(-total // self.shards)
        return slice(min(self.rank * width, total), min((self.rank + 1) * width, total))

    def cut(self, name: str, source: Any, shape: Sequence[int]) -> Tensor:
        """The share of the parameter `name` of `models.gpt2`. `source`: all of it in the layout of
        the hub's checkpoints, where matrices are `[in, out]`, and scales `[out, 1]`; only what is
        cut out is read."""
        take: Callable[..., Tensor] = source.__getitem__
        layer, _, kind = name.rpartition(".")
        match layer.rpartition(".")[2], kind:
            case "wte", _:
                return take(self.of(shape[0]))
            case "qkv", _:  # of the queries, of the keys, of the values
                axis = 1 if kind == "weight" else 0
                width = shape[axis] // 3
                own = self.of(width)
                cuts = [slice(i * width + own.start, i * width + own.stop) for i in range(3)]
                parts = [source[:, cut] if axis else source[cut] for cut in cuts]
                return torch.cat(parts, dim=axis)
            case "fc", "weight":
                return take((slice(None), self.of(shape[1])))
            case "fc", ("bias" | "scale"):
                return take(self.of(shape[0]))
            case (("attn_proj" | "mlp_proj"), "weight"):
                return take(self.of(shape[0]))
            case _:
                return take(slice(None))


WHOLE = Part()
