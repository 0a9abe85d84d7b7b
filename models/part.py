"""Which share of a network one of several shards holds: tensor parallelism.

Attention heads and the columns of the MLP are split, and so is the vocabulary, for the embedding
and for the head; every shard has the norms, positions and biases after a sum (Shoeybi et al.,
"Megatron-LM", 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.networks import Config
from seams import LoadError

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
