"""An iteration over a pool of KV blocks on a GPU, without a launch or a transfer for a single row.

One copy (`send`) transfers an iteration's numbers to the device. Attention is then one launch for
all rows. Where the kernel cannot be used, it is `TorchAttention` (`runtime/attention.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.gpu.paged import MOST_SPLITS, SPLIT_KEYS
from runtime.attention import Counts, Flat, Span, Spans, places_of
from runtime.cache import KVPool, KVShape
from runtime.gpu.tables import KeptTables, News
from runtime.transfer import Array, send

if TYPE_CHECKING:
    from kernels.gpu.attention import Launch

Numbers = TypeVar("Numbers", Array, Tensor)


@dataclass(frozen=True, slots=True)
class Packed(Generic[Numbers]):
    """An iteration of `N` tokens and `R` rows; tokens of no row are padding. All but the slots are
    int32. Rows, tiles and tables are those of `kernels.gpu.attention.attend`."""

    tokens: Numbers  # [N]; -1 - j: token j of those that the iteration in flight draws
    positions: Numbers  # [N]
    kept: Numbers  # [K] places on the flat axis whose hidden states are wanted, ascending
    drawn: Numbers  # [draws] those of `kept` after which a token is drawn
    slots: Numbers  # [N] int64: slot in the pool; -1: none
    rows: (
        Numbers  # [R, 5] first on the flat axis, new tokens, keys, first of its table, of its tiles
    )
    tiles: Numbers  # [T, 2] row, and its split or the first of its tokens
    tables: Numbers  # [places * width], see `KeptTables`
    singles: int  # tiles of rows with one new token
    splits: bool  # one of them has several
    shared: bool = False  # several rows are one sequence's: its newest token, and drafts behind it


def pack(
    flat: Flat, kept: Array, drawn: Array, tables: KeptTables, block_tokens: int, tile_tokens: int
) -> tuple[Packed[Array], News]:
    """The iteration, and what it adds to the tables. `tile_tokens`: tokens of a prompt that the
    kernel computes together."""
    spans = flat.spans.present()
    news = tables.news(spans.tables)
    rows = np.zeros((len(spans), 5), dtype=np.int32)
    first, count, length, begin, tile = rows.T
    first[:], count[:], length[:] = spans.first, spans.length, spans.start + spans.length
    begin[:] = news.places * tables.width
    row, within = places_of(spans.length)
    position = spans.start[row] + within
    slots = np.full(len(flat.tokens), -1, dtype=np.int64)
    in_block = tables.host[news.places[row], position // block_tokens].astype(np.int64)
    slots[spans.first[row] + within] = in_block * block_tokens + position % block_tokens
    single, prompts = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
    splits = splits_of(length[single])
    tile[single] = splits.cumsum() - splits
    decoding, split = places_of(splits)
    of, piece = places_of(-(-count[prompts] // tile_tokens))
    tiles = [(single[decoding], split), (prompts[of], piece * tile_tokens)]
    packed: Packed[Array] = Packed(
        np.array(flat.tokens, dtype=np.int32),
        flat.positions.astype(np.int32),
        kept.astype(np.int32),
        drawn.astype(np.int32),
        slots,
        rows,
        np.concatenate([np.stack(columns, axis=1) for columns in tiles]).astype(np.int32),
        tables.host.reshape(-1),
        len(split),
        len(split) > len(single),
        news.shared,
    )
    return packed, news


def splits_of(keys: NDArray[Any]) -> NDArray[Any]:
    """Programs that read so many keys of rows with one new token."""
    return (-(-keys // SPLIT_KEYS)).clip(max=MOST_SPLITS)


def arrays_of(packed: Packed[Array]) -> list[Array]:
    """In the order of its fields, without the tables, which are on the device."""
    arrays = [packed.tokens, packed.positions, packed.kept, packed.drawn, packed.slots]
    return [*arrays, packed.rows, packed.tiles]


def sent_alone(
    positions: Counts, spans: Sequence[Span], shape: KVShape, tile_tokens: int
) -> Packed[Tensor]:
    """An iteration for attention only, on the device of the pool's shape."""
    device = shape.device
    tables = KeptTables(len(spans), max(len(span.table.blocks) for span in spans), device)
    none = np.zeros(0, dtype=np.int64)
    flat = Flat([0] * len(positions), positions, Spans.of(spans), none)
    packed, news = pack(flat, none, none, tables, shape.block_tokens, tile_tokens)
    *sent, at, blocks = send([*arrays_of(packed), news.at, news.blocks], device)
    tables.keep(news, at, blocks)
    return Packed(*sent, tables.blocks, packed.singles, packed.splits, packed.shared)  # type: ignore[call-arg,arg-type]


class PagedAttention:
    """`attend` by the kernels, for any number of rows: one launch a layer for decodes, which also
    stores their keys and values, another if one of them reads enough keys to be split, and two for
    prompts, of which drafts need the one that stores."""

    def __init__(self, packed: Packed[Tensor], pool: KVPool, launch: Launch | None = None) -> None:
        """`launch`: of decodes; None: the fastest on this GPU."""
        self._packed, self._pool, self._launch = packed, pool, launch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Triton is part of torch's CUDA build only
        from kernels.gpu.attention import attend
        from runtime.gpu.tuning import decode_launch

        if self._launch is None:
            self._launch = decode_launch(q.shape[1], self._pool.shape)
        of = self._packed
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        attended: Tensor = attend(
            q, k, v, keys, values, of.slots, of.rows, of.tables, of.tiles, of.singles, of.splits,
            self._pool.shape.windows[layer], *self._launch, of.shared,
        )  # fmt: skip
        return attended
