"""Where weights come from, as the loader sees it: a name, a shape, a type and slices of each piece
of a network's parameters (models/weights/pieces.py), always as `[out, in]`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.networks import Config
from models.weights.pieces import Shape

CHUNK_VALUES = 1 << 22  # that are read at once, so that little memory is needed beside the weights

# bits of a value in each type of weights that linear layers compute as they are stored
STORED_BITS = {"int8": 8.0, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0}
# types of GGUF files that become 8 bits with a scale for each 32 inputs, where such layers compute
ROUNDED = {"Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}


@dataclass(frozen=True, slots=True)
class Raw:
    """Weights as they are stored, in one of STORED_BITS: `data` `[out, bytes or values of a row]`,
    and for int8 the `scale` of each output `[out]`."""

    kind: str
    data: Tensor
    scale: Tensor | None = None


class WeightSource(ABC):
    """Sources raise LoadError."""

    config: Config
    place: str  # for messages

    @abstractmethod
    def shape(self, piece: str) -> Shape | None:
        """None: it is absent."""

    @abstractmethod
    def storage(self, piece: str) -> str:
        """The type of the stored weights: one of STORED_BITS, or a name of the format."""

    @abstractmethod
    def values(self, piece: str, rows: slice, columns: slice) -> Tensor:
        """As floating-point numbers; of a vector the columns mean nothing."""

    def raw(self, piece: str, rows: slice, columns: slice) -> Raw | None:
        """For a `storage` that is one of STORED_BITS; None: not so sliced. Blocks of 32 inputs
        can be divided between them only."""
        return None

    def read(self, piece: str, rows: slice, columns: slice, into: Tensor) -> None:
        """Fills `into`, of the slices' size and of any floating-point type."""
        shape = self.shape(piece)
        assert shape is not None, piece
        start, stop, _ = rows.indices(shape[0])
        step = max(1, CHUNK_VALUES // into[0].numel()) if len(into) else 1
        for first in range(start, stop, step):
            after = min(stop, first + step)
            part = self.values(piece, slice(first, after), columns)
            into[first - start : after - start].copy_(part)


class RandomSource(WeightSource):
    """Seeded random weights of a known shape: real work, meaningless text. As in GPT-2, normal with
    a standard deviation of 0.02, and less before residual sums."""

    BLOCK_ROWS = 1024  # drawn together, with a seed of their own: a shard draws its share alone

    def __init__(self, config: Config, seed: int, shapes: Mapping[str, Shape]) -> None:
        self.config, self.place = config, "random weights"
        self._seed, self._shapes = seed, shapes
        self._number = {piece: i for i, piece in enumerate(shapes)}

    def shape(self, piece: str) -> Shape | None:
        return self._shapes.get(piece)

    def storage(self, piece: str) -> str:
        return "F32"

    def values(self, piece: str, rows: slice, columns: slice) -> Tensor:
        shape = self._shapes[piece]
        start, stop, _ = rows.indices(shape[0])
        if len(shape) == 1:
            is_norm = piece.endswith("weight")
            return torch.full((stop - start,), 1.0 if is_norm else 0.0)
        std = 0.02 / (2 * self.config.n_layer) ** 0.5 if "_proj" in piece else 0.02
        first = start // self.BLOCK_ROWS
        blocks = range(first, -(-stop // self.BLOCK_ROWS))
        drawn = [self._block(piece, block, shape) for block in blocks]
        offset = first * self.BLOCK_ROWS
        return torch.cat(drawn)[start - offset : stop - offset, columns] * std

    def _block(self, piece: str, block: int, shape: Shape) -> Tensor:
        generator = torch.Generator()
        generator.manual_seed(hash((self._seed, self._number[piece], block)) % 2**63)
        rows = min(self.BLOCK_ROWS, shape[0] - block * self.BLOCK_ROWS)
        return torch.randn(rows, shape[1], generator=generator)
