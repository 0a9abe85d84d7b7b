"""Decode iterations recorded once as CUDA graphs and replayed: one launch instead of hundreds.

A graph has fixed shapes and fixed addresses. So there is one for each of some batch sizes. A batch
is padded to the next larger size with rows that have no keys, and its numbers are copied to the
addresses that the graph reads. Tables are as wide as the model's longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt.gpu.paged import Packed, arrays_of
from gpt.transfer import Array, stage, views

MOST_ROWS = 512  # a larger iteration is long enough to hide its launches

# hidden states [K, C] of an iteration, and logits [draws, V]
Forward = Callable[[Packed[Tensor]], tuple[Tensor, Tensor]]


def graph_sizes(max_rows: int) -> list[int]:
    """1, 2, 4, 8, then multiples of 16, up to the first that holds `max_rows`."""
    most = min(max_rows, MOST_ROWS)
    sizes = [1, 2, 4, 8, *range(16, MOST_ROWS + 1, 16)]
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < most]


def is_decode(packed: Packed[Array]) -> bool:
    return packed.singles == len(packed.rows)


def padded(packed: Packed[Array], size: int, blocks: int, block_tokens: int) -> Packed[Array]:
    """A decode iteration as one of `size` tokens and rows, with tables of `blocks`."""

    def longer(array: Array, fill: int) -> Array:
        new = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
        new[: len(array)] = array
        return new

    tables = np.zeros((size, blocks), dtype=np.int32)
    tables[: len(packed.tables), : packed.tables.shape[1]] = packed.tables
    tiles = np.zeros((size, 2), dtype=np.int32)
    tiles[:, 0] = np.arange(size)
    return Packed(
        longer(packed.tokens, 0),
        longer(packed.positions, 0),
        longer(packed.kept, 0),
        longer(packed.drawn, 0),
        longer(packed.slots, -1),
        longer(packed.rows, 0),
        tables,
        tiles,
        size,
        blocks * block_tokens,
    )


class DecodeGraphs:
    """One graph for each size, recorded when this is made. Raises torch.OutOfMemoryError."""

    def __init__(
        self,
        forward: Forward,
        max_rows: int,
        blocks: int,
        block_tokens: int,
        device: torch.device,
    ) -> None:
        """`blocks`: of the longest sequence. On a CPU nothing is recorded, and `forward` is
        called each time."""
        self._blocks, self._block_tokens = blocks, block_tokens
        self._device = device
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        sizes = reversed(graph_sizes(max_rows))  # smaller ones reuse its memory
        self._replays = {size: self._record(forward, size) for size in sizes}

    def __call__(self, packed: Packed[Array]) -> tuple[Tensor, Tensor] | None:
        """The result of `forward`, valid until the next call; None if no graph fits."""
        rows = len(packed.tokens)
        fitting = [size for size in self._replays if size >= rows]
        if not fitting or not is_decode(packed):
            return None
        size = min(fitting)
        hidden, logits = self._replays[size](self._padded(packed, size))
        return hidden[: len(packed.kept)], logits[: len(packed.drawn)]

    def _padded(self, packed: Packed[Array], size: int) -> Packed[Array]:
        return padded(packed, size, self._blocks, self._block_tokens)

    def _record(
        self, forward: Forward, size: int
    ) -> Callable[[Packed[Array]], tuple[Tensor, Tensor]]:
        nothing = np.empty(0, dtype=np.int32)
        empty: Packed[Array] = Packed(
            nothing, nothing, nothing, nothing, nothing.astype(np.int64), nothing.reshape(0, 3),
            nothing.reshape(0, 1), nothing.reshape(0, 2), 0, 0,
        )  # fmt: skip
        like = self._padded(empty, size)
        on_gpu = self._device.type == "cuda"
        numbers = stage(arrays_of(like), pinned=on_gpu).to(self._device, copy=True)
        of = views(numbers, arrays_of(like))
        fixed = Packed(*of, like.singles, like.longest)  # type: ignore[call-arg,arg-type]
        if on_gpu:
            graph, found = _recorded(lambda: forward(fixed), self._memory)

        def replay(packed: Packed[Array]) -> tuple[Tensor, Tensor]:
            numbers.copy_(stage(arrays_of(packed), pinned=on_gpu), non_blocking=True)
            if not on_gpu:
                return forward(fixed)
            graph.replay()
            return found

        return replay


def _recorded(
    run: Callable[[], tuple[Tensor, Tensor]], memory: Any
) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]:
    # everything built or allocated at first use must exist before; on a separate stream, as
    # torch's documentation requires
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        found = run()
    return graph, found
