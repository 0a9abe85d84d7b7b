"""The network on a GPU: one copy sends an iteration's numbers, and decodes may be CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpt.attention import Span
from gpt.cache import BlockTable, KVPool
from gpt.errors import is_shortage
from gpt.gpu.graphs import DecodeGraphs
from gpt.gpu.paged import Packed, PagedAttention, TwoCallAttention, arrays_of, pack, to_device
from gpt.network import GPT
from gpt.transfer import Array, send

log = logging.getLogger(__name__)


class Device:
    """Runs iterations over a pool. `kernel`: attention by the Triton kernel; else by torch's own
    operators, which cannot be recorded as graphs."""

    def __init__(self, network: GPT, pool: KVPool, *, kernel: bool) -> None:
        self._network, self._pool = network, pool
        self._kernel = kernel
        self._graphs: DecodeGraphs | None = None
        self._tile_tokens = 1
        if kernel:
            from kernels.paged_triton import queries_per_tile  # part of torch's CUDA build only

            heads = network.config.n_head // network.config.shards
            group = heads // pool.shape.kv_heads
            self._tile_tokens = queries_per_tile(pool.shape.dtype, pool.shape.head_dim) // group

    @property
    def has_graphs(self) -> bool:
        return self._graphs is not None

    def record_graphs(self, max_rows: int) -> None:
        """Records decodes of up to `max_rows` rows. Without the kernel or the memory for them there
        are none, and the log says so."""
        if not self._kernel:
            log.warning("no CUDA graphs are recorded: the attention kernel is not used")
            return
        size = self._pool.shape.block_tokens
        blocks = -(-self._network.config.context // size)
        device = self._pool.shape.device
        try:
            with torch.inference_mode():
                self._graphs = DecodeGraphs(self._run, max_rows, blocks, size, device)
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            log.warning("no CUDA graphs are recorded, since there is too little memory: %s", error)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Attention of a decode that is laid out like one over the longest context: it launches
        what no short one does, so that no request waits for Triton. Overwrites the pool's first
        slot."""
        if not self._kernel:
            return
        place, shape = np.zeros(1, dtype=np.int64), self._pool.shape
        span = Span(0, 1, 0, BlockTable([0]))
        packed = pack([0], place, place, place, [span], shape.block_tokens, self._tile_tokens)
        sent = send(arrays_of(packed), shape.device)
        of = Packed(*sent, packed.singles, self._network.config.context)  # type: ignore[call-arg,arg-type]
        heads = self._network.config.n_head // self._network.config.shards
        size = (1, heads + 2 * shape.kv_heads, shape.head_dim)
        fused = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        q, k, v = fused.split_with_sizes([heads, shape.kv_heads, shape.kv_heads], dim=1)
        PagedAttention(of, self._pool)(0, q, k, v)

    def __call__(
        self,
        tokens: Sequence[int],
        positions: Array,
        kept: Array,
        drawn: Array,
        spans: Sequence[Span],
    ) -> tuple[Tensor, Tensor]:
        """Hidden states `[K, C]` of the places `kept`, and logits `[draws, V]` after those of them
        at `drawn`."""
        size = self._pool.shape.block_tokens
        packed = pack(tokens, positions, kept, drawn, spans, size, self._tile_tokens)
        if self._graphs is not None and (replayed := self._graphs(packed)) is not None:
            return replayed
        sent = to_device(packed, self._pool.shape.device)
        if self._kernel:
            return self._run(sent)
        return self._run(sent, TwoCallAttention(packed, self._pool))

    def _run(
        self, packed: Packed[Tensor], attend: TwoCallAttention | None = None
    ) -> tuple[Tensor, Tensor]:
        by = attend or PagedAttention(packed, self._pool)
        hidden = self._network(packed.tokens, packed.positions, by, packed.kept)
        return hidden, self._network.head(hidden.index_select(0, packed.drawn))
