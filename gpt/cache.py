"""Keys and values of sequences, and the budget in tokens that they are taken from.

Two layouts. A `SequenceKV` is one sequence's own, contiguous: what iteration-level batching needs.
A `RectangleKV` is shared by the rows of a padded batch. Both are owned by the handles given out:
when the last reference goes, memory and budget return, so a release cannot be forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpt.network import GPTConfig
from seams import Need, OutOfMemoryError


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


class KVBudget:
    """Counts tokens. `used` + free = `budget`, and nothing is used when no handle is alive."""

    def __init__(self, tokens: int) -> None:
        self.budget = tokens
        self.used = 0

    def take(self, tokens: int, owner: object) -> None:
        """Reserves `tokens` for the lifetime of `owner`. Raises OutOfMemoryError."""
        if self.used + tokens > self.budget:
            raise OutOfMemoryError(
                f"{tokens} tokens of KV memory wanted, {self.budget - self.used} of "
                f"{self.budget} free (--kv-memory)"
            )
        self.used += tokens
        weakref.finalize(owner, self._return, tokens)

    def _return(self, tokens: int) -> None:
        self.used -= tokens


class SequenceKV:
    """One sequence: keys and values `[n_layer, n_head, capacity, head_dim]`."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.capacity = capacity  # counted by the budget
        size = (shape.n_layer, shape.n_head, capacity, shape.head_dim)
        self.keys = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.values = torch.empty(size, dtype=shape.dtype, device=shape.device)

    def grow(self) -> None:
        """To `capacity`, by copying: attention wants a sequence in one piece. While one of the two
        is copied it exists twice, beyond the budget."""
        self.keys = _longer(self.keys, self.capacity)
        self.values = _longer(self.values, self.capacity)


def _longer(old: torch.Tensor, capacity: int) -> torch.Tensor:
    layers, heads, length, dim = old.shape
    new = old.new_empty((layers, heads, capacity, dim))
    new[:, :, :length] = old
    return new


class RectangleKV:
    """A padded batch: keys and values `[n_layer, rows, n_head, capacity, head_dim]`.

    `filled` columns are in use, the same for all rows; of row i the first `pads[i]` are padding,
    known once the prompts are in.
    """

    def __init__(self, shape: KVShape, rows: int, capacity: int) -> None:
        size = (shape.n_layer, rows, shape.n_head, capacity, shape.head_dim)
        self.keys = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.values = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.filled = 0
        self.pads: list[int] = []


class RectangleRow:
    """A row's handle; the rectangle lives as long as one of its rows does."""

    def __init__(self, rectangle: RectangleKV, index: int) -> None:
        self.rectangle = rectangle
        self.index = index


class RectangleMemory(KVBudget):
    """The budget as static batches take it: every row is as long as the longest."""

    def cost(self, needs: Sequence[Need]) -> int:
        return len(needs) * rectangle_width(needs)


class RaggedMemory(KVBudget):
    """The budget as sequences take it that are stored one by one."""

    def cost(self, needs: Sequence[Need]) -> int:
        return sum(need.known + need.further for need in needs)


def rectangle_width(needs: Sequence[Need]) -> int:
    """Columns: prompts end in the same one, and the longest answer follows it."""
    return max(need.known for need in needs) + max(need.further for need in needs)
