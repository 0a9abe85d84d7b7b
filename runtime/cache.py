"""Keys and values: one pool of blocks for all sequences, allocated when a model is loaded.

A block holds the keys and values of `block_tokens` positions, of all layers. The engine's ledger
assigns blocks (`engine/blocks.py`); a sequence's table lists those that hold its positions. So a
sequence grows by taking a block, and nothing is copied (Kwon et al., "Efficient Memory Management
for Large Language Model Serving with PagedAttention", SOSP '23, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.networks import Config

BLOCK_TOKENS = 16  # a smaller block shares and fits better, a larger one takes fewer look-ups


@dataclass(frozen=True, slots=True)
class KVShape:
    """Of keys and values. Each of the `kv_heads` may serve several query heads. `windows`: of each
    layer, positions that a token attends to, itself included; None: all before it; empty: all
    layers attend to all."""

    n_layer: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    block_tokens: int = BLOCK_TOKENS
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.n_layer)

    @classmethod
    def of(cls, config: Config, dtype: torch.dtype, device: torch.device) -> KVShape:
        heads = config.kv_heads // config.shards
        return cls(config.n_layer, heads, config.head_dim, dtype, device, windows=config.windows)

    @property
    def token_bytes(self) -> int:
        return 2 * self.n_layer * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.token_bytes


class KVPool:
    """`keys` and `values`: `[n_layer, blocks, block_tokens, kv_heads, head_dim]`. If the system
    commits memory at the first write, blocks that were never used take none."""

    def __init__(self, shape: KVShape, blocks: int) -> None:
        size = (2, shape.n_layer, blocks, shape.block_tokens, shape.kv_heads, shape.head_dim)
        self.shape = shape
        both = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self.keys, self.values = both
        # of each layer's keys and values: read in every layer of every iteration, slow to compute
        self.addresses = [tuple(part.data_ptr() for part in layer) for layer in both.unbind(1)]

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer as `[slots, kv_heads, head_dim]`: slot = block x block_tokens
        + the position's place in its block."""
        return self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)


class BlockTable:
    """The blocks of a sequence, int32, in the order of its positions: `count` of them, the first at
    `address`."""

    __slots__ = ("address", "blocks", "count")

    def __init__(self, blocks: Sequence[int] = ()) -> None:
        self.blocks = np.empty(0, dtype=np.int32)
        self.extend(blocks)

    def extend(self, blocks: Sequence[int]) -> None:
        self.blocks = np.concatenate([self.blocks, np.asarray(blocks, dtype=np.int32)])
        # used in every iteration, slow to compute
        self.address, self.count = self.blocks.ctypes.data, len(self.blocks)

    def slots(self, start: int, end: int, block_tokens: int) -> NDArray[np.int64]:
        """The slots of these positions in a pool."""
        at = np.arange(start, end)
        return self.blocks[at // block_tokens].astype(np.int64) * block_tokens + at % block_tokens
