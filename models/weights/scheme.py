"""What a checkpoint with int8 weights says of itself.

The format is `int-quantized` of compressed-tensors (W8A8): of each linear layer, `weight` is int8,
in the layout of the original, and `weight_scale` has a factor for each output; the kernels quantise
inputs, token by token. Everything else is as in the original, also the embedding, and with it the
head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
