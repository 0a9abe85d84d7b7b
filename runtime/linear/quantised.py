"""Networks with int8 weights: made from others, and what a checkpoint of one says of itself.

The checkpoint's format is `int-quantized` of compressed-tensors (W8A8): of each linear layer,
`weight` is int8, in the layout of the original, and `weight_scale` has a factor for each output;
the kernels quantise inputs, token by token. Everything else is as in the original, also the
embedding, and with it the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from models.gpt2 import GeluLinear
from runtime.linear.layers import Int8Linear
from runtime.shards import SummedLinear

_EVERYWHERE = {"num_bits": 8, "type": "int", "symmetric": True}
_WEIGHTS = {**_EVERYWHERE, "strategy": "channel", "dynamic": False}
_INPUTS = {**_EVERYWHERE, "strategy": "token", "dynamic": True}
_GROUP = {"weights": _WEIGHTS, "input_activations": _INPUTS, "output_activations": None}
_REQUIRED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "kv_cache_scheme": None,
}
# the `quantization_config` of what we write
SCHEME = {
    **_REQUIRED,
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], **_GROUP}},
    "ignore": ["lm_head"],
}


class SchemeError(ValueError):
    """A way of quantising that is not computed here; the message says what is allowed."""


def check_scheme(said: Any) -> None:
    """Of a `quantization_config`: whether its weights are int8 as ours. Raises SchemeError."""
    _require("quantization_config", said, _REQUIRED)
    groups = said.get("config_groups")
    _require("quantization_config.config_groups", groups, {})
    for name, group in groups.items():
        _require(f"quantization_config.config_groups.{name}", group, _GROUP)


def _require(place: str, said: Any, wanted: Mapping[str, Any]) -> None:
    if not isinstance(said, dict):
        raise SchemeError(f"{place} is {said!r}, allowed: an object")
    for name, only in wanted.items():
        if isinstance(only, dict):
            _require(f"{place}.{name}", said.get(name), only)
        elif said.get(name) != only:
            raise SchemeError(f"{place}.{name} is {said.get(name)!r}, allowed: {only!r}")


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


def dequantise_linears(network: nn.Module) -> None:
    """Linear layers in float32 in place of those with int8 weights."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Int8Linear):
                setattr(module, name, _dequantised(child))


def is_quantised(network: nn.Module) -> bool:
    return bool(_int8_layers(network))


def _int8_layers(network: nn.Module) -> list[Int8Linear]:
    return [module for module in network.modules() if isinstance(module, Int8Linear)]


def _dequantised(layer: Int8Linear) -> nn.Linear:
    size = layer.in_features, layer.out_features
    with torch.device("meta"):
        gelu = layer.approximate
        made = nn.Linear(*size) if gelu is None else GeluLinear(*size, gelu)
    made.weight = nn.Parameter(layer.weight.float() * layer.scale[:, None], requires_grad=False)
    made.bias = layer.bias
    return made
