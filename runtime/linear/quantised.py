"""Networks with int8 weights, made from others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from runtime.linear.layers import Int8Linear
from runtime.shards import SummedLinear


def quantise_linears(network: nn.Module, rest: torch.dtype) -> None:
    """Linear layers with int8 weights in place of the network's own, from its weights as they are;
    what else it has, embeddings and norms, is converted to `rest`."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                largest = child.weight.detach().float().abs().amax(1)
                if isinstance(module, SummedLinear):  # other ranks have the other inputs
                    dist.all_reduce(largest, dist.ReduceOp.MAX)
                setattr(module, name, Int8Linear(child, largest))
    of_layers = {id(p) for layer in _int8_layers(network) for p in layer.parameters()}
    for parameter in network.parameters():
        if id(parameter) not in of_layers:
            parameter.data = parameter.data.to(rest)


def with_int8_linears(network: nn.Module) -> None:
    """For a checkpoint whose linear layers are int8, before its weights are assigned."""
    quantise_linears(network, torch.float32)


def is_quantised(network: nn.Module) -> bool:
    return bool(_int8_layers(network))


def _int8_layers(network: nn.Module) -> list[Int8Linear]:
    return [module for module in network.modules() if isinstance(module, Int8Linear)]
