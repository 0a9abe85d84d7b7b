"""Iterations recorded once as CUDA graphs and replayed: one launch instead of hundreds.

A graph reads and writes fixed addresses. So all graphs read one buffer of numbers, to which an
iteration's numbers are copied, and write one buffer of hidden states: they run one after the other.
The tiles of attention, which say whose queries meet which keys, are numbers, too; those that an
iteration does not need refer to an empty row. The head follows outside of the graph, for the rows
that are really there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.gpu.buckets import Bucket, Buckets
from runtime.gpu.paged import Packed, arrays_of
from runtime.gpu.tables import KeptTables, News
from runtime.transfer import Array, padded_bytes, stage, views

# beside an iteration's own numbers, for what its scores of prompts need; more runs without a graph
SPARE_BYTES = 64 << 10

# an iteration's numbers, the places whose hidden states are wanted (None: all), where its tokens
# are found (`sources_of`), what the iteration before it has drawn -> hidden states [kept, C]
Forward = Callable[[Packed[Tensor], Tensor | None, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Ran:
    """An iteration after the network."""

    hidden: Tensor  # [K, C]
    drawn: Tensor  # [draws] int32: places in `hidden` after which a token is drawn
    sent: list[Tensor]  # the further numbers that were sent with it


def sources_of(tokens: Array, behind: int) -> Array:
    """Where each token is found: at its own place, or, for token -1 - j, at place j of what the
    iteration in flight draws, which lies at `behind`."""
    sources = np.arange(len(tokens), dtype=np.int32)
    in_flight = tokens < 0
    sources[in_flight] = behind - 1 - tokens[in_flight]
    return sources


def is_every(places: Array, count: int) -> bool:
    """Whether these are 0, 1 ... count - 1."""
    return len(places) == count and bool((places == np.arange(count)).all())


def padded(packed: Packed[Array], bucket: Bucket) -> Packed[Array]:
    """The iteration as one of the bucket's size."""

    def longer(array: Array, size: int, fill: int) -> Array:
        new = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
        new[: len(array)] = array
        return new

    tiles = np.zeros((bucket.singles + bucket.pieces, 2), dtype=np.int32)
    tiles[:, 0] = bucket.rows - 1
    tiles[: packed.singles] = packed.tiles[: packed.singles]
    pieces = packed.tiles[packed.singles :]
    tiles[bucket.singles : bucket.singles + len(pieces)] = pieces
    return Packed(
        longer(packed.tokens, bucket.tokens, 0),
        longer(packed.positions, bucket.tokens, 0),
        longer(packed.kept, bucket.kept, 0),
        longer(packed.drawn, bucket.kept, 0),
        longer(packed.slots, bucket.tokens, -1),
        longer(packed.rows, bucket.rows, 0),
        tiles,
        packed.tables,
        bucket.singles,
        bucket.splits,
    )


def _nothing() -> Packed[Array]:
    none = np.empty(0, dtype=np.int32)
    return Packed(
        none, none, none, none, none.astype(np.int64), none.reshape(0, 5), none.reshape(0, 2),
        np.zeros(1, dtype=np.int32), 0, False,
    )  # fmt: skip


class Graphs:
    """A graph for each bucket, recorded when this is made. Raises torch.OutOfMemoryError."""

    def __init__(
        self,
        forward: Forward,
        buckets: Buckets,
        max_rows: int,
        width: int,
        dtype: torch.dtype,
        tables: KeptTables,
    ) -> None:
        """`width`: of hidden states. On a CPU nothing is recorded, and `forward` is called each
        time."""
        self._forward, self._buckets, self._tables = forward, buckets, tables
        device = tables.blocks.device
        self._on_gpu = device.type != "cpu"
        self.replayed = 0  # iterations
        self.most_rows = max_rows
        kept = max(bucket.kept for bucket in buckets)
        self._hidden = torch.empty(kept, width, dtype=dtype, device=device)
        self._newest = torch.zeros(max_rows, dtype=torch.int64, device=device)
        most = max(sum(map(padded_bytes, self._arrays(_nothing(), b))) for b in buckets)
        most += 4 * tables.blocks.numel() + SPARE_BYTES
        self._numbers = torch.zeros(most, dtype=torch.uint8, device=device)
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._newest_bucket: Bucket | None = None
        self._fixed = {bucket: self._views(bucket) for bucket in buckets}
        if self._on_gpu:
            self._record()

    def __call__(
        self, packed: Packed[Array], newest: Tensor | None, also: Sequence[Array], news: News
    ) -> Ran | None:
        """The iteration's result, valid until the next call; None if no graph holds it. `newest`:
        the tokens in flight; `also`: further numbers to send."""
        bucket = self._buckets.fitting(packed)
        if bucket is None:
            return None
        own = [*self._arrays(packed, bucket), news.at, news.blocks]
        arrays = [*own, *also]
        staged = stage(arrays, pinned=self._on_gpu)
        if len(staged) > len(self._numbers):
            return None
        self._numbers[: len(staged)].copy_(staged, non_blocking=True)
        if newest is not None:
            self._newest[: len(newest)].copy_(newest)
        sent: list[Tensor] = []
        if also or len(news.at):
            *_, at, blocks = views(self._numbers, own)
            self._tables.keep(news, at, blocks)
            sent = views(self._numbers, arrays)[len(own) :]
        self._newest_bucket = bucket
        self.replay_newest()
        self.replayed += 1
        fixed, kept = self._fixed[bucket][0], len(packed.kept)
        hidden = self._hidden[:kept]
        if bucket.keeps_all and not is_every(packed.kept, kept):
            hidden = self._hidden.index_select(0, fixed.kept[:kept])
        return Ran(hidden, fixed.drawn[: len(packed.drawn)], sent)

    @torch.inference_mode()
    def replay_newest(self) -> None:
        """Runs the newest iteration (again), over the numbers that were sent for it."""
        assert self._newest_bucket is not None
        if self._on_gpu:
            self._graphs[self._newest_bucket].replay()
        else:
            self._run(self._newest_bucket)

    def _arrays(self, packed: Packed[Array], bucket: Bucket) -> list[Array]:
        large = padded(packed, bucket)
        return [sources_of(large.tokens, len(large.tokens)), *arrays_of(large)]

    def _views(self, bucket: Bucket) -> tuple[Packed[Tensor], Tensor]:
        """The places of its numbers, and of its sources."""
        sources, *of = views(self._numbers, self._arrays(_nothing(), bucket))
        fixed = Packed(*of, self._tables.blocks, bucket.singles, bucket.splits)  # type: ignore[call-arg,arg-type]
        return fixed, sources

    def _run(self, bucket: Bucket) -> None:
        fixed, sources = self._fixed[bucket]
        kept = None if bucket.keeps_all else fixed.kept
        self._hidden[: bucket.kept].copy_(self._forward(fixed, kept, sources, self._newest))

    def _record(self) -> None:
        """On one stream, since each has a workspace of its own, and from one pool of memory."""
        memory = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        for bucket in self._buckets:
            empty = stage(self._arrays(_nothing(), bucket), pinned=True)
            with torch.cuda.stream(side):
                self._numbers[: len(empty)].copy_(empty, non_blocking=True)
                self._run(bucket)  # what is built or allocated at first use must exist before
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory, stream=side):
                self._run(bucket)
            self._graphs[bucket] = graph
        torch.cuda.current_stream().wait_stream(side)
