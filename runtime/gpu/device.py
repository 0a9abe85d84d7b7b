"""The network on a GPU: one copy sends an iteration's numbers, and a CUDA graph may run it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.paged import SPLIT_KEYS, queries_per_tile
from models.networks import Network
from runtime.attention import Flat, Span, Spans, TorchAttention
from runtime.cache import BlockTable, KVPool
from runtime.gpu.buckets import Buckets
from runtime.gpu.graphs import Graphs, Ran, is_every, sources_of
from runtime.gpu.paged import Packed, PagedAttention, arrays_of, pack, sent_alone
from runtime.gpu.tables import KeptTables, News
from runtime.iteration import LocalIteration
from runtime.transfer import Array, send

log = logging.getLogger(__name__)

# share of the largest value: a graph pads, and products of other shapes round differently
ROUNDING = {torch.float32: 5e-4, torch.float16: 2e-2, torch.bfloat16: 0.15}


class Device:
    """Runs iterations over a pool. `kernel`: attention by the Triton kernel; else by torch's own
    operators, which cannot be recorded as graphs."""

    def __init__(self, network: Network, pool: KVPool, *, kernel: bool) -> None:
        self._network, self._pool = network, pool
        self._kernel = kernel
        self.graphs: Graphs | None = None
        self._tables = self._places(1)
        self._tile_tokens = 1
        if kernel:
            heads = network.config.n_head // network.config.shards
            group = heads // pool.shape.kv_heads
            self._tile_tokens = queries_per_tile(pool.shape.dtype, pool.shape.head_dim) // group

    @torch.inference_mode()
    def record_graphs(self, max_rows: int) -> str | None:
        """Records iterations of up to `max_rows` rows, over the first block of the pool. They are
        not used without the kernel or the memory for them, or if they compute something else than
        the network itself: returns that, with the reason."""
        if not self._kernel:
            return "CUDA graphs are not used: the attention kernel is not used"
        config, shape = self._network.config, self._pool.shape
        buckets = Buckets(max_rows, config.context, self._tile_tokens)
        try:
            self._tables = self._places(max_rows)
            self.graphs = Graphs(
                self._forward, buckets, max_rows, config.n_embd, shape.dtype, self._tables
            )
            reason = self._difference(self.graphs)
        except RuntimeError as error:  # also torch's for too little memory
            reason = str(error).partition("\n")[0]
        if reason is None:
            return None
        self.graphs = None
        unused = f"CUDA graphs are not used, but single launches: {reason}"
        log.warning("%s", unused)
        return unused

    def _difference(self, graphs: Graphs) -> str | None:
        """Compares a prompt, a decode, whose token is in flight, and a chunk beside the decode of
        a long row, with and without a graph."""
        size = self._pool.shape.block_tokens
        newest = torch.tensor([1], device=self._pool.shape.device)
        count = size - 1
        compared: list[tuple[list[int], list[Span]]] = [
            ([0] * count, [Span(0, count, 0, BlockTable([0]))]),
            ([-1], [Span(0, 1, count, BlockTable([0]))]),
        ]
        far = SPLIT_KEYS  # as many keys as are not split, and one more
        if graphs.most_rows > 1 and far < self._network.config.context:
            table = BlockTable([0] * -(-(far + 1) // size))  # the pool may have a single block
            both = [Span(0, 1, far, table), Span(1, size, size, table)]
            compared.append(([-1] + [0] * size, both))
        for tokens, spans in compared:
            new, start = len(tokens), spans[0].start
            positions = np.concatenate([np.arange(s.start, s.start + s.length) for s in spans])
            ends = np.array([span.first + span.length for span in spans])
            flat = Flat(tokens, positions, Spans.of(spans), ends)
            packed, news = self._pack(flat, ends - 1, np.arange(len(spans)))
            if len(spans) > 1:  # rows that share a block must not write to it
                packed = replace(packed, slots=np.full_like(packed.slots, -1))
            ran = graphs(packed, newest, (), news)
            if ran is None:
                return f"none was recorded for {new} tokens"
            expected = self._eager(packed, newest, (), news, flat.spans).hidden.float()
            error = float((ran.hidden.float() - expected).abs().max())
            limit = ROUNDING[self._pool.shape.dtype] * max(1.0, float(expected.abs().max()))
            if not error <= limit:
                return (
                    f"{new} new tokens over {start} others differ by {error:.2g} from those "
                    f"without a graph, allowed: {limit:.2g}"
                )
        return None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Attention of a decode that is laid out like one with splits: it launches what no short
        one does, so that no request waits for Triton. Overwrites the pool's first slot."""
        if not self._kernel:
            return
        place, shape = np.zeros(1, dtype=np.int64), self._pool.shape
        span = Span(0, 1, 0, BlockTable([0]))
        of = replace(sent_alone(place, [span], shape, self._tile_tokens), splits=True)
        heads = self._network.config.n_head // self._network.config.shards
        size = (1, heads + 2 * shape.kv_heads, shape.head_dim)
        fused = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        q, k, v = fused.split_with_sizes([heads, shape.kv_heads, shape.kv_heads], dim=1)
        PagedAttention(of, self._pool)(0, q, k, v)

    def __call__(
        self, iteration: LocalIteration, newest: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """As `Executor._run`. The numbers `also` are sent in the same copy as the others."""
        drawn, also = iteration.drawn, iteration.also
        packed, news = self._pack(iteration.flat, iteration.kept, drawn)
        ran = None if self.graphs is None else self.graphs(packed, newest, also, news)
        if ran is None:
            ran = self._eager(packed, newest, also, news, iteration.flat.spans)
        hidden = ran.hidden
        if not is_every(drawn, len(hidden)):
            hidden = hidden.index_select(0, ran.drawn)
        return ran.hidden, self._network.head(hidden) if len(drawn) else hidden[:0], ran.sent

    def _places(self, count: int) -> KeptTables:
        """For the tables of so many rows."""
        blocks = -(-self._network.config.context // self._pool.shape.block_tokens)
        return KeptTables(count, blocks, self._pool.shape.device)

    def _pack(self, flat: Flat, kept: Array, drawn: Array) -> tuple[Packed[Array], News]:
        rows = len(flat.spans)
        if rows > len(self._tables):  # graphs, made for all rows there may be, read the old
            self._tables, self.graphs = self._places(rows), None
        size = self._pool.shape.block_tokens
        return pack(flat, kept, drawn, self._tables, size, self._tile_tokens)

    def _eager(
        self,
        packed: Packed[Array],
        newest: Tensor | None,
        also: Sequence[Array],
        news: News,
        spans: Spans,
    ) -> Ran:
        arrays = arrays_of(packed)
        own = len(arrays)
        in_flight = bool((packed.tokens < 0).any())
        more = [sources_of(packed.tokens, len(packed.tokens))] if in_flight else []
        more += [news.at, news.blocks]
        found = send([*arrays, *more, *also], self._pool.shape.device)
        first = own + len(more)  # of `also`
        self._tables.keep(news, *found[first - 2 : first])
        counts = packed.singles, packed.splits, packed.shared
        sent = Packed(*found[:own], self._tables.blocks, *counts)  # type: ignore[call-arg,arg-type]
        kept = None if is_every(packed.kept, len(packed.tokens)) else sent.kept
        attend = None if self._kernel else TorchAttention(spans, self._pool)
        if newest is not None and in_flight:
            hidden = self._forward(sent, kept, found[own], newest, attend)
        else:
            hidden = self._run(sent, kept, attend)
        return Ran(hidden, sent.drawn, found[first:])

    def _forward(
        self,
        packed: Packed[Tensor],
        kept: Tensor | None,
        sources: Tensor,
        newest: Tensor,
        attend: TorchAttention | None = None,
    ) -> Tensor:
        """As `_run`, with the tokens that are on the device only."""
        tokens = torch.cat([packed.tokens, newest]).index_select(0, sources)
        return self._run(replace(packed, tokens=tokens), kept, attend)

    def _run(
        self, packed: Packed[Tensor], kept: Tensor | None, attend: TorchAttention | None
    ) -> Tensor:
        """Hidden states of the places `kept`, or of all."""
        by = attend or PagedAttention(packed, self._pool)
        hidden: Tensor = self._network(packed.tokens, packed.positions, by, kept)
        return hidden
