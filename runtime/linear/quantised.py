"""Networks with int8 weights, made from others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.decoder import RMSNorm
from models.weights.loader import StoredLayers
from models.weights.source import Raw
from runtime.linear.blocks import KINDS, BlockEmbedding, BlockLinear
from runtime.linear.layers import Int8Linear
from runtime.shards import SummedLinear


def quantise_linears(network: nn.Module, rest: torch.dtype) -> None:
    """Linear layers with int8 weights in place of the network's own, from its weights as they are;
    what else it has is converted to `rest`, but for RMSNorms."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                largest = child.weight.detach().float().abs().amax(1)
                if isinstance(module, SummedLinear):  # other ranks have the other inputs
                    dist.all_reduce(largest, dist.ReduceOp.MAX)
                setattr(module, name, Int8Linear(child, largest))
    kept = [module for module in network.modules() if isinstance(module, Int8Linear | RMSNorm)]
    of_layers = {id(p) for layer in kept for p in layer.parameters()}
    for parameter in network.parameters():
        if id(parameter) not in of_layers:
            parameter.data = parameter.data.to(rest)


def int8_layer(empty: nn.Linear, raw: Raw, bias: Tensor | None) -> Int8Linear:
    """From int8 weights as a checkpoint has them."""
    assert raw.scale is not None
    layer = Int8Linear(empty)
    layer.weight = nn.Parameter(raw.data, requires_grad=False)
    layer.scale = raw.scale
    if bias is not None:
        layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer


def stored_kind(module: nn.Module) -> str | None:
    """The type of a linear layer's weights, if they are quantised."""
    if isinstance(module, BlockLinear):
        return module.kind
    return "int8" if isinstance(module, Int8Linear) else None


def block_layer(_: nn.Linear, raw: Raw, bias: Tensor | None) -> BlockLinear:
    return BlockLinear.of(raw.kind, raw.data, bias)


def block_embedding(head: nn.Module, dtype: torch.dtype) -> BlockEmbedding:
    assert isinstance(head, BlockLinear)
    return BlockEmbedding(head, dtype)


# types of stored weights that linear layers compute as they are
STORED: StoredLayers = {"int8": int8_layer, **dict.fromkeys(KINDS, block_layer)}
