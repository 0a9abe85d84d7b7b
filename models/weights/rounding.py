"""Weights rounded to 8 or 4 bits: with a float32 scale for each output, or with a float16 scale for
each 32 inputs in the layout of GGUF files (llama.cpp's `ggml-common.h`)."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32  # inputs to a scale


def quantise_int8(weight: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """`[out, in]` and the largest absolute weight of each output `[out]`, which may have further
    inputs elsewhere -> int8 weights, and the scale of each output `[out]`."""
    scale = torch.where(largest > 0, largest, 1.0) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def quantise_q8_0(weight: Tensor) -> Tensor:
    """`[out, in]` -> uint8 `[out, bytes of a row]`, rounded as in llama.cpp's reference."""
    blocks = weight.float().view(len(weight), -1, BLOCK)
    scale = blocks.abs().amax(2, keepdim=True) / 127
    scaled = blocks * torch.where(scale == 0, 0.0, 1 / scale)
    below = scaled.abs().floor()
    whole = below + (2 * (scaled.abs() - below)).floor()  # halves away from zero
    return _raw(scale, (whole * scaled.sign()).to(torch.int8).view(torch.uint8))


def quantise_q4_0(weight: Tensor) -> Tensor:
    """`[out, in]` -> uint8 `[out, bytes of a row]`, rounded as in llama.cpp's reference."""
    blocks = weight.float().view(len(weight), -1, BLOCK)
    largest = blocks.gather(2, blocks.abs().argmax(2, keepdim=True))  # with its sign
    scale = largest / -8
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    whole = (blocks * inverse + 8.5).to(torch.uint8).clamp(max=15)
    first, second = whole.chunk(2, dim=2)
    return _raw(scale, first | second << 4)


def _raw(scale: Tensor, integers: Tensor) -> Tensor:
    return torch.cat([scale.half().view(torch.uint8), integers], dim=2).flatten(1)
