"""What the self-check compares on a device: attention over a pool of KV blocks as an iteration
calls it with plain torch in float64, and a replayed CUDA graph with the same work without a graph.

Queries, keys and values are slices of one tensor, as those of the network are. Blocks are
scattered, and positions that were never written hold NaN.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.paged import attend_rectangle
from models.gpt2 import Attend
from runtime.attention import Span
from runtime.cache import BlockTable, KVPool, KVShape
from runtime.gpu.paged import Packed, sent_alone

COMPARE_S = 30.0  # after which no further case is begun; each kernel compiles for seconds
# relative to the largest value, or to 1: rounding of weights and of results
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ABSENT = 2  # tokens of no row at the end of the flat axis

# rows of each case: tokens before, new tokens
Rows = Sequence[tuple[int, int]]
CASES: Sequence[Rows] = (
    [(0, 1), (15, 1), (16, 1), (99, 1), (40, 1)],
    [(0, 5), (99, 1), (63, 1), (20, 37), (0, 1), (0, 70)],
    [(1000, 1), (255, 1), (256, 1), (700, 33)],
    [(300, 200)],
)
# of the same sizes: a graph has fixed shapes
DECODES: Sequence[Rows] = ([(3, 1), (40, 1), (511, 1)], [(511, 1), (3, 1), (40, 1)])

# as runtime.gpu.paged.PagedAttention
Attention = Callable[[Packed[Tensor], KVPool], Attend]
# returns the same as a CUDA graph: a call replays it, and its result is overwritten by the next one
Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape for which the kernel is compiled."""

    heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str
    window: int | None = None  # as in runtime.cache.KVShape

    @classmethod
    def of(cls, heads: int, shape: KVShape) -> Heads:
        dtype = str(shape.dtype).removeprefix("torch.")
        return cls(heads, shape.kv_heads, shape.head_dim, shape.block_tokens, dtype)

    def pool(self, blocks: int, device: torch.device) -> KVPool:
        """Of one layer."""
        sizes = (1, self.kv_heads, self.head_dim)
        dtype: torch.dtype = getattr(torch, self.dtype)
        return KVPool(KVShape(*sizes, dtype, device, self.block_tokens, (self.window,)), blocks)


class LayerCase:
    """An iteration of one layer with random numbers. `packed`: its layout on the device; `pool`:
    keys and values of the tokens before; `fused` `[N, H + 2 kv_heads, D]`: queries, keys and
    values of the new tokens."""

    def __init__(
        self, rows: Rows, heads: Heads, tile_tokens: int, device: torch.device, seed: int
    ) -> None:
        size = heads.block_tokens
        random = torch.Generator().manual_seed(seed)
        each = max(-(-sum(row) // size) for row in rows)  # blocks
        self._heads = heads
        self._tables = torch.randperm(len(rows) * each, generator=random).view(len(rows), each)
        self.spans, first = list[Span](), 0
        for (start, count), blocks in zip(rows, self._tables.tolist(), strict=True):
            self.spans.append(Span(first, count, start, BlockTable(blocks)))
            first += count
        tokens = first + ABSENT
        at = [np.arange(start, start + count) for start, count in rows]
        positions = np.concatenate([*at, np.zeros(ABSENT, dtype=np.int64)])
        self.pool = heads.pool(len(rows) * each, device)
        self.packed = sent_alone(positions, self.spans, self.pool.shape, tile_tokens)
        dtype, shape = self.pool.shape.dtype, (heads.kv_heads, heads.head_dim)
        for half in (self.pool.keys, self.pool.values):
            half.fill_(torch.nan)
            for span in self.spans:
                slots = torch.from_numpy(span.table.slots(0, span.start, size))
                past = torch.randn(span.start, *shape, generator=random)
                half[0].flatten(0, 1)[slots] = past.to(device, dtype)
        width = heads.heads + 2 * heads.kv_heads
        self.fused = torch.randn(tokens, width, heads.head_dim, generator=random).to(device, dtype)

    def attended(self, attention: Attention) -> Tensor:
        """`[N, H, D]`. Writes the new keys and values to the pool."""
        return attention(self.packed, self.pool)(0, *self.split())

    def split(self) -> Sequence[Tensor]:
        """Queries, keys and values."""
        return self.fused.split_with_sizes(
            [self._heads.heads, self._heads.kv_heads, self._heads.kv_heads], dim=1
        )

    def expected(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """By plain torch in float64: each row's result `[count, H, D]`; and the pool's keys and
        values afterwards."""
        size = self._heads.block_tokens
        q, k, v = self.split()
        keys, values = self.pool.keys[0].clone(), self.pool.values[0].clone()
        for span in self.spans:
            slots = torch.from_numpy(span.table.slots(span.start, span.start + span.length, size))
            new = slice(span.first, span.first + span.length)
            keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots] = k[new], v[new]
        both, results = (keys.double(), values.double()), []
        for span, table in zip(self.spans, self._tables, strict=True):
            new, end = slice(span.first, span.first + span.length), span.start + span.length
            positions = torch.arange(span.start, end, device=q.device)[None]
            tables = table[None].to(q.device)
            of = (q[None, new].double(), *both, tables, positions, self._heads.window)
            results.append(attend_rectangle(*of)[0])
        return results, keys, values

    def copy_(self, other: LayerCase) -> None:
        """The numbers of a case of the same shapes, at this one's addresses."""
        self.fused.copy_(other.fused)
        self.pool.keys.copy_(other.pool.keys)
        self.pool.values.copy_(other.pool.values)
        for field in fields(self.packed):
            mine, theirs = getattr(self.packed, field.name), getattr(other.packed, field.name)
            if isinstance(mine, Tensor):
                mine.copy_(theirs)


def differs(
    attention: Attention, tile_tokens: int, heads: Heads, device: torch.device
) -> str | None:
    """Where `attention` differs from plain torch. `tile_tokens`: as of `pack`."""
    deadline_s = time.monotonic() + COMPARE_S
    for seed, rows in enumerate(CASES):
        case = LayerCase(rows, heads, tile_tokens, device, seed)
        results, keys, values = case.expected()
        found = case.attended(attention)
        if not (_same(case.pool.keys[0], keys) and _same(case.pool.values[0], values)):
            return "new keys and values are not stored in their slots"
        limit = TOLERANCE[keys.dtype]
        for span, expected in zip(case.spans, results, strict=True):
            mine = found[span.first : span.first + span.length]
            error = float((mine - expected).abs().max())
            allowed = limit * max(1.0, float(expected.abs().max()))
            if not error <= allowed:
                return (
                    f"{span.length} new tokens over {span.start} others differ by {error:.2g}, "
                    f"allowed: {allowed:.2g}"
                )
        if time.monotonic() > deadline_s:
            break
    return None


def replay_differs(
    attention: Attention,
    tile_tokens: int,
    heads: Heads,
    device: torch.device,
    record: Record,
) -> str | None:
    """How a recorded decode, replayed with other numbers at the same addresses, differs from the
    same decode without a graph."""
    recorded, eager = (
        LayerCase(rows, heads, tile_tokens, device, seed) for seed, rows in enumerate(DECODES)
    )
    replay = record(lambda: recorded.attended(attention))
    recorded.copy_(eager)
    expected = eager.attended(attention)
    found = replay()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    there = slice(len(eager.spans))  # others are tokens of no row
    if not _same(found[there], expected[there]):
        error = float((found[there] - expected[there]).abs().nan_to_num(math.inf).max())
        return f"a replayed decode differs by {error:.2g} from one that is launched"
    stored = _same(recorded.pool.keys, eager.pool.keys)
    if not stored or not _same(recorded.pool.values, eager.pool.values):
        return "a replayed decode stores other keys and values than one that is launched"
    return None


def record_graph(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A `Record` on the current GPU."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is built at first use must exist before
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()

    def replay() -> Tensor:
        graph.replay()
        return found

    return replay


def _same(a: Tensor, b: Tensor) -> bool:
    """To the last bit; NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
