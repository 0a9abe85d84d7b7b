"""The networks that are served, as one type."""

from __future__ import annotations

from dataclasses import replace

import torch

from models.decoder import Decoder
from models.description import Description
from models.gpt2 import GPT, GPTConfig

Config = GPTConfig | Description
Network = GPT | Decoder


def make(config: Config) -> Network:
    """A network of this shape; a shard's part of it if `config.shards` says so."""
    return GPT(config) if isinstance(config, GPTConfig) else Decoder(config)


def limit_context(network: Network, tokens: int) -> None:
    """From now on no position beyond is planned for."""
    if isinstance(network, GPT):
        network.config = replace(network.config, context=tokens)
    else:
        network.config = replace(network.config, context=tokens)


def count_parameters(config: Config) -> int:
    """Of the whole network, however many shards share it."""
    with torch.device("meta"):
        return sum(p.numel() for p in make(replace(config, shards=1)).parameters())
