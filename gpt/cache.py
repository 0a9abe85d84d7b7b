"""Keys and values of sequences, in one piece each: a sequence of its own, or a row of a rectangle.

The engine's ledger counts their blocks; what is here follows it. Memory returns when the sequence
or, of a rectangle, the last of its rows is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.network import GPTConfig


@dataclass(frozen=True, slots=True)
class KVShape:
    """Of one token's keys and values, over all layers."""

    n_layer: int
    n_head: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, config: GPTConfig, dtype: torch.dtype, device: torch.device) -> KVShape:
        return cls(config.n_layer, config.n_head, config.head_dim, dtype, device)

    @property
    def token_bytes(self) -> int:
        return 2 * self.n_layer * self.n_head * self.head_dim * self.dtype.itemsize


class SequenceKV:
    """One sequence: keys and values `[n_layer, H, capacity, D]`, a position to a column."""

    __slots__ = ("geometry", "keys", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        # elements from head to head, bytes from layer to layer, addresses: read in every iteration
        self.geometry = (
            keys.stride(1),
            keys.stride(0) * keys.element_size(),
            keys.data_ptr(),
            values.data_ptr(),
        )

    @classmethod
    def empty(cls, shape: KVShape, capacity: int) -> SequenceKV:
        size = (shape.n_layer, shape.n_head, capacity, shape.head_dim)
        return cls(
            torch.empty(size, dtype=shape.dtype, device=shape.device),
            torch.empty(size, dtype=shape.dtype, device=shape.device),
        )

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def longer(self, tokens: int) -> SequenceKV:
        """A copy with room for so many more. While it is made, both exist, beyond the budget."""
        return SequenceKV(_longer(self.keys, tokens), _longer(self.values, tokens))


def _longer(old: Tensor, tokens: int) -> Tensor:
    layers, heads, length, dim = old.shape
    new = old.new_empty((layers, heads, length + tokens, dim))
    new[:, :, :length] = old
    return new


class RectangleKV:
    """A padded batch: keys and values `[n_layer, rows, H, capacity, D]`. Padding has no place in
    it: each row's tokens begin in the first column."""

    def __init__(self, shape: KVShape, rows: int, capacity: int, *, masked: bool) -> None:
        """`masked`: a masked attention reads columns that were never written, and a NaN in one of
        them would survive its weight of zero."""
        size = (shape.n_layer, rows, shape.n_head, capacity, shape.head_dim)
        make = torch.zeros if masked else torch.empty
        self.keys = make(size, dtype=shape.dtype, device=shape.device)
        self.values = make(size, dtype=shape.dtype, device=shape.device)

    @property
    def rows(self) -> int:
        return self.keys.shape[1]


class RectangleRow(SequenceKV):
    """A row of a rectangle, which lives as long as one of its rows does."""

    __slots__ = ("index", "rectangle")

    def __init__(self, rectangle: RectangleKV, index: int) -> None:
        super().__init__(rectangle.keys[:, index], rectangle.values[:, index])
        self.rectangle = rectangle
        self.index = index
