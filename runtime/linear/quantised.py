"""The layers that compute quantised weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.weights.loader import StoredLayers
from models.weights.source import Raw
from runtime.linear.blocks import KINDS, BlockEmbedding, BlockLinear
from runtime.linear.layers import Int8Linear


def int8_layer(empty: nn.Linear, raw: Raw, bias: Tensor | None) -> Int8Linear:
    assert raw.scale is not None
    return Int8Linear(empty, raw.data, raw.scale, bias)


def block_layer(_: nn.Linear, raw: Raw, bias: Tensor | None) -> BlockLinear:
    return BlockLinear.of(raw.kind, raw.data, bias)


def block_embedding(head: nn.Module, dtype: torch.dtype) -> BlockEmbedding:
    assert isinstance(head, BlockLinear)
    return BlockEmbedding(head, dtype)


def stored_kind(module: nn.Module) -> str | None:
    """The type of a linear layer's weights, if they are quantised."""
    if isinstance(module, BlockLinear):
        return module.kind
    return "int8" if isinstance(module, Int8Linear) else None


# by the type of the weights that a network holds
INT8_LAYERS: StoredLayers = {"int8": int8_layer}
BLOCK_LAYERS: StoredLayers = dict.fromkeys(KINDS, block_layer)
