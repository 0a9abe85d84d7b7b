"""Attention over a pool of KV blocks, in plain torch.

The pool of a layer: keys and values `[blocks, block_tokens, kv_heads, head_dim]`. A row's table
names its blocks in order, so that its key `n` lies at block `table[n // block_tokens]`, offset
`n % block_tokens`. `attend_rectangle` defines the kernel (`attention.py`) and replaces it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SPLIT_KEYS = 256  # of a row with a single new token, read by one program; more if the row is long
MOST_SPLITS = 16  # of a row: bounds the memory that they take


def queries_per_tile(dtype: torch.dtype, head_dim: int) -> int:
    """Of a prompt, counted in query heads that share a KV head. Larger tiles of float32 do not fit
    into every GPU's shared memory, and compile for ten seconds."""
    if dtype.itemsize == 2:
        return 64 if head_dim <= 128 else 32
    return 32 if head_dim <= 64 else 16


def attend_rectangle(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    positions: Tensor,
    window: int | None = None,
) -> Tensor:
    """Each query attends to the keys of its row up to its own position, the last `window` of them.

    q `[R, W, H, D]`, of which `kv_heads` divides `H`; tables `[R, blocks]`; positions `[R, W]`,
    -1 where there is no query. Returns `[R, W, H, D]`, zeros where there is no query.
    """
    column = torch.arange(tables.shape[1] * keys.shape[1], device=q.device)
    seen = column <= positions[..., None]  # [R, W, L]
    if window is not None:
        seen &= column > positions[..., None] - window
    # a NaN in memory that was never written would survive its weight of zero
    absent = ~seen.any(1)[..., None, None]  # [R, L, 1, 1]
    k, v = (
        pool[tables].flatten(1, 2).masked_fill_(absent, 0).transpose(1, 2)  # [R, kv_heads, L, D]
        for pool in (keys, values)
    )
    attended = F.scaled_dot_product_attention(
        q.transpose(1, 2), k, v, attn_mask=seen[:, None], enable_gqa=k.shape[1] != q.shape[2]
    )
    return attended.transpose(1, 2)
