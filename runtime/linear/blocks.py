"""Linear layers over the quantised weights of GGUF files, 32 inputs to a scale.

`Q8_0` stores 8 bits a weight and a scale d, `Q4_0` 4 bits and a scale, `Q4_1` 4 bits, a scale and a
minimum m; scales and minima are float16. A weight is d (n - 8) in Q4_0, d n + m in Q4_1 and d n in
Q8_0. The layouts in a file are those of llama.cpp's `ggml-common.h`.

In memory the same bytes lie in panels of 16 outputs, as the kernels of `kernels/linear/blocks.h`
read them. Nothing is kept twice: the embedding that shares the head's weights reads its rows from
the same panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.source import BLOCK

BlockKind = Literal["q8_0", "q4_0", "q4_1"]
KINDS: tuple[BlockKind, ...] = get_args(BlockKind)
PANEL = 16  # outputs that lie together, as in kernels/linear/linear.h
LEAST = 1e-30  # a block of smaller inputs counts as zeros, as in kernels/linear/linear.h


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How a kind stores 32 weights: float16 numbers, then integers."""

    numbers: int  # the scale, and the minimum if there is one
    bits: int  # of a weight
    offset: int  # subtracted from an unsigned integer

    @property
    def quants(self) -> int:
        """Bytes of a block's integers."""
        return BLOCK * self.bits // 8

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return 2 * self.numbers + self.quants


FORMATS: dict[BlockKind, BlockFormat] = {
    "q8_0": BlockFormat(numbers=1, bits=8, offset=128),
    "q4_0": BlockFormat(numbers=1, bits=4, offset=8),
    "q4_1": BlockFormat(numbers=2, bits=4, offset=0),
}


def to_panels(kind: BlockKind, raw: Tensor) -> Tensor:
    """uint8 `[out, bytes of a row]` as in a file -> `[panels, pairs of blocks, bytes]`.

    Of each panel of 16 outputs and two blocks: for each block the scales of all outputs and their
    minima, then for each block and word of four bytes the words of all outputs. Signed integers
    become unsigned. An odd block has zeros beside it."""
    form = FORMATS[kind]
    outputs, width = raw.shape
    if width % form.size:
        raise ValueError(f"{width} bytes in a row, not a multiple of {form.size}, {kind}'s block")
    raw = F.pad(raw, (0, -width % (2 * form.size), 0, -outputs % PANEL))
    pairs = raw.shape[1] // (2 * form.size)
    blocks = raw.view(-1, PANEL, pairs, 2, form.size)
    head, quants = blocks[..., : -form.quants], blocks[..., -form.quants :]
    if kind == "q8_0":
        quants = quants ^ 0x80
    parts = [part.view(*part.shape[:4], -1, size) for part, size in ((head, 2), (quants, 4))]
    return torch.cat([part.permute(0, 2, 3, 4, 1, 5).flatten(2) for part in parts], dim=2)


class _Panels:
    """Reads the weights of a layer's panels."""

    def __init__(self, kind: BlockKind, panels: Tensor, inputs: int) -> None:
        self.form, self.blocks = FORMATS[kind], inputs // BLOCK
        size = self.form.numbers * 2 * PANEL  # of the numbers of one block
        pairs = panels.shape[:2]  # of all panels
        self._numbers = panels[:, :, : 2 * size].view(*pairs, 2, -1, PANEL, 2)
        self._words = panels[:, :, 2 * size :].view(*pairs, 2, -1, PANEL, 4)

    def block(self, block: int) -> tuple[Tensor, list[Tensor]]:
        """float32, of all outputs, whole panels of them: integers less the offset `[out, 32]`, and
        scales and, if the kind has any, minima `[out]`."""
        words = self._words[:, block // 2, block % 2].transpose(1, 2)  # [P, 16, words, 4]
        numbers = self._numbers[:, block // 2, block % 2].transpose(1, 2)
        return self._integers(words.flatten(0, 1).flatten(1)), _floats(numbers.flatten(0, 1))

    def rows(self, outputs: Tensor) -> Tensor:
        """int64 `[N]` -> float32 weights `[N, in]`; other rows are not read."""
        panel, lane = outputs // PANEL, outputs % PANEL
        words = self._words[panel, :, :, :, lane].flatten(3).flatten(1, 2)  # [N, B, bytes]
        scale, *minimum = _floats(self._numbers[panel, :, :, :, lane].flatten(1, 2))  # [N, B]
        weights = self._integers(words) * scale[..., None]
        if minimum:
            weights += minimum[0][..., None]
        return weights[:, : self.blocks].flatten(1)

    def _integers(self, stored: Tensor) -> Tensor:
        """uint8 `[..., bytes]` -> float32 `[..., 32]`"""
        if self.form.bits == 4:
            stored = torch.cat([stored & 0xF, stored >> 4], dim=-1)
        return stored.float() - self.form.offset


def _floats(numbers: Tensor) -> list[Tensor]:
    """uint8 `[..., numbers, 2]` -> float32 `[...]` of each"""
    halves = numbers.contiguous().view(torch.float16)[..., 0]
    return list(halves.float().unbind(-1))


def quantised_inputs(x: Tensor) -> tuple[Tensor, Tensor]:
    """`[N, in]` -> integers from -127 to 127 as float32 `[B, N, 32]` and a scale for each block
    `[B, N]`."""
    blocks = x.float().view(len(x), -1, BLOCK).transpose(0, 1)
    largest = blocks.abs().amax(2)
    factor = torch.where(largest > LEAST, torch.full_like(largest, 127) / largest, 0.0)
    whole = (blocks.double() * factor[..., None]).round().float()  # in double the product is exact
    return whole, largest / torch.full_like(largest, 127)


class BlockLinear(nn.Module):
    """A linear layer over a GGUF file's quantised weights.

    Inputs are quantised to 8 bits, each 32 by their own largest value. Products within a block are
    summed in integers, which is exact. The sums, times the scales of inputs and of weights, are
    added in float32 from the first block to the last. So the result for a row does not depend on
    other rows.
    """

    panels: Tensor

    def __init__(
        self, kind: BlockKind, panels: Tensor, inputs: int, outputs: int, bias: Tensor | None
    ) -> None:
        """`panels`: of `to_panels`."""
        super().__init__()
        self.kind, self.in_features, self.out_features = kind, inputs, outputs
        self.register_buffer("panels", panels)
        bias = None if bias is None else bias.detach().float()
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def of(cls, kind: str, raw: Tensor, bias: Tensor | None = None) -> BlockLinear:
        """`raw`: uint8 `[out, bytes of a row]` in the layout of GGUF files; `bias`: `[out]`. Raises
        ValueError for another kind, or rows of no whole blocks."""
        known = next((known for known in KINDS if known == kind), None)
        if known is None:
            raise ValueError(f"blocks of {kind!r}, allowed: {', '.join(KINDS)}")
        outputs, width = raw.shape
        inputs = width // FORMATS[known].size * BLOCK
        return cls(known, to_panels(known, raw), inputs, outputs, bias)

    def dequantised(self) -> Tensor:
        """float32 `[out, in]`"""
        panels = _Panels(self.kind, self.panels, self.in_features)
        return panels.rows(torch.arange(self.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, in]` -> `[N, out]`"""
        panels = _Panels(self.kind, self.panels, self.in_features)
        whole, input_scale = quantised_inputs(x)
        y = torch.zeros(len(x), len(self.panels) * PANEL)
        for block in range(panels.blocks):
            integers, (scale, *minimum) = panels.block(block)
            row_scale = input_scale[block, :, None]
            # float32 holds sums of products exactly: they are below 2^20
            y += (whole[block] @ integers.t()) * (scale * row_scale)
            if minimum:
                y += minimum[0] * (whole[block].sum(1, keepdim=True) * row_scale)
        y = y[:, : self.out_features]
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class BlockEmbedding(nn.Module):
    """Rows of a layer's quantised weights by token; the layer may be the network's head."""

    panels: Tensor

    def __init__(self, linear: nn.Module, dtype: torch.dtype) -> None:
        assert isinstance(linear, BlockLinear)
        super().__init__()
        self.kind, self.dtype = linear.kind, dtype
        self.num_embeddings, self.embedding_dim = linear.out_features, linear.in_features
        self.register_buffer("panels", linear.panels)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 `[...]` -> `[..., in]`"""
        panels = _Panels(self.kind, self.panels, self.embedding_dim)
        return panels.rows(tokens.flatten()).to(self.dtype).view(*tokens.shape, -1)
