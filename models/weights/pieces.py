"""The pieces of a network's parameters that sources of weights have.

A piece is a parameter, or a part of one whose rows lie in several tensors of most files: the
queries, keys and values of one linear layer, and the gate and the values of the MLP.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import torch

from models.networks import Config, make

Shape = tuple[int, ...]

FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


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


def is_linear(piece: str) -> bool:
    """Whether it is the matrix of a block's linear layer."""
    parts = piece.split(".")
    return parts[0] == "blocks" and parts[-1] == "weight" and not _is_norm(parts[-2])


def _is_norm(layer: str) -> bool:
    return layer.startswith("ln_") or layer.endswith("_norm")
