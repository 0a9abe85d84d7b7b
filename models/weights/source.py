"""Where weights come from, as the loader sees it: a name, a shape, a type and slices of each piece
of a network's parameters, always as `[out, in]`; and how they are rounded to 8 bits.

A piece is a parameter, or a part of one whose rows lie in several tensors of most files: the
queries, keys and values of one linear layer, and the gate and the values of the MLP.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.networks import Config, make

Shape = tuple[int, ...]

FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
CHUNK_VALUES = 1 << 22  # that are read at once, so that little memory is needed beside the weights

# bits of a value in each type of weights that linear layers compute as they are stored
STORED_BITS = {"int8": 8.0, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0}
# types of GGUF files that become 8 bits with a scale for each 32 inputs, where such layers compute
ROUNDED = {"Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}
BLOCK = 32  # inputs to a scale, in the layout of GGUF files (llama.cpp's `ggml-common.h`)


def pieces_of(parameter: str) -> list[str]:
    """In the order of their rows."""
    layer, _, kind = parameter.rpartition(".")
    holder, dot, own = layer.rpartition(".")
    return [f"{holder}{dot}{name}.{kind}" for name in FUSED.get(own, (own,))]


def together(piece: str) -> list[str]:
    """The pieces of its parameter, itself among them."""
    layer, _, kind = piece.rpartition(".")
    holder, dot, own = layer.rpartition(".")
    fused = next((name for name, parts in FUSED.items() if own in parts), own)
    return pieces_of(f"{holder}{dot}{fused}.{kind}")


@functools.lru_cache(maxsize=16)
def shapes_of(config: Config) -> Mapping[str, Shape]:
    """Every piece of the whole network; a head that is the embedding is none."""
    keys = config.kv_heads * config.head_dim
    rows = {
        "q": config.n_head * config.head_dim, "k": keys, "v": keys,
        "gate": config.mlp_width, "up": config.mlp_width,
    }  # fmt: skip
    with torch.device("meta"):
        network = make(replace(config, shards=1))
    found: dict[str, Shape] = {}
    for parameter, whole in network.named_parameters():
        for piece in pieces_of(parameter):
            own = piece.split(".")[-2]
            found[piece] = (rows.get(own, whole.shape[0]), *whole.shape[1:])
    return found


def is_norm(layer: str) -> bool:
    return layer.startswith("ln_") or layer.endswith("_norm")


def is_linear(piece: str) -> bool:
    """Whether it is the matrix of a block's linear layer."""
    parts = piece.split(".")
    return parts[0] == "blocks" and parts[-1] == "weight" and not is_norm(parts[-2])


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

    def __init__(self, config: Config, seed: int) -> None:
        self.config, self.place = config, "random weights"
        self._seed, self._shapes = seed, shapes_of(config)
        self._number = {piece: i for i, piece in enumerate(self._shapes)}

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


def quantise_int8(weight: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """`[out, in]` and the largest absolute weight of each output `[out]`, which may have further
    inputs elsewhere -> int8 weights, and the scale of each output `[out]`."""
    scale = torch.where(largest > 0, largest, 1.0) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def quantise_q8_0(weight: Tensor) -> Tensor:
    """`[out, in]` -> uint8 `[out, bytes of a row]`, rounded as in llama.cpp's reference, with a
    float16 scale for each block."""
    blocks = weight.float().view(len(weight), -1, BLOCK)
    scale = blocks.abs().amax(2, keepdim=True) / 127
    scaled = blocks * torch.where(scale == 0, 0.0, 1 / scale)
    below = scaled.abs().floor()
    whole = below + (2 * (scaled.abs() - below)).floor()  # halves away from zero
    integers = (whole * scaled.sign()).to(torch.int8).view(torch.uint8)
    return torch.cat([scale.half().view(torch.uint8), integers], dim=2).flatten(1)
