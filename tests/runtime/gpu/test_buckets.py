"""Which iterations replay a graph, as a count; and block tables on the device, of which only what
is new is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.attention import Flat, Span, Spans
from runtime.cache import BlockTable
from runtime.gpu.buckets import MIXED, Buckets
from runtime.gpu.paged import Packed, pack, splits_of
from runtime.gpu.tables import KeptTables

TILE, BLOCK_TOKENS, KV_HEADS = 64, 16, 8


@given(
    prompts=st.lists(st.integers(2, 400), max_size=40),
    decodes=st.lists(st.integers(1, 5000), max_size=200),
    padding=st.integers(0, 50),
    context=st.sampled_from([64, 1024, 5000]),
    max_rows=st.sampled_from([1, 5, 32, 240]),
    shared=st.booleans(),
)
def test_every_iteration_up_to_the_largest_size_has_a_graph(
    prompts: list[int],
    decodes: list[int],
    padding: int,
    context: int,
    max_rows: int,
    shared: bool,
) -> None:
    """Whatever its prompts are, and no larger one than it needs. Drafts, whose rows are shared, run
    in one that stores keys before it attends."""
    prompts, decodes = prompts[:max_rows], decodes[: max(0, max_rows - len(prompts))]
    pieces = sum(-(-count // TILE) for count in prompts)
    rows = len(prompts) + len(decodes)
    splits = splits_of(np.array([min(keys, context) for keys in decodes], dtype=int))
    tokens = sum(prompts) + len(decodes) + padding * bool(rows)
    has_splits = bool((splits > 1).any())
    singles = int(splits.sum())
    sizes = (tokens, tokens, rows, rows, tokens, rows, singles + pieces, rows)
    arrays = [np.zeros(size, dtype=np.int32) for size in sizes]
    load: Any = Packed(*arrays, singles, has_splits, shared)  # type: ignore[call-arg,arg-type]
    buckets = Buckets(max_rows, context, TILE)
    found = buckets.fitting(load)
    if tokens <= min(max_rows * context, MIXED[-1]):
        assert found is not None
        assert found in list(buckets)
    if found is not None:
        assert found.holds(load)
        assert found.rows > rows
        assert found.splits >= load.splits
        assert found.pieces or not (pieces or shared)
        less = [b for b in buckets if b.holds(load) and b.pieces == found.pieces]
        assert all(b.tokens >= found.tokens and b.singles >= found.singles for b in less)


@pytest.mark.parametrize(
    ("keys", "launched", "busy"),
    [
        ([256] * 63 + [5000], 2048, 632),
        ([256] * 255 + [5000], 8192, 2168),
        (np.random.default_rng(0).integers(1, 5001, 256).tolist(), 32768, 20840),
    ],
    ids=["a long row of 64", "of 256", "any lengths"],
)
def test_a_row_launches_programs_for_its_own_keys(
    keys: list[int], launched: int, busy: int
) -> None:
    """A layer's programs for decodes, as a graph, and those of them that have keys. With all rows
    laid out like the longest, 16 splits each, these were 8,192 programs for 64 rows, and 32,768 for
    256."""
    tables = [BlockTable(range(-(-length // BLOCK_TOKENS))) for length in keys]
    spans = [Span(i, 1, keys[i] - 1, table) for i, table in enumerate(tables)]
    at = np.arange(len(keys))
    kept = KeptTables(len(keys), -(-5000 // BLOCK_TOKENS), torch.device("cpu"))
    flat = Flat([0] * len(keys), at, Spans.of(spans), at)
    packed, _ = pack(flat, at, at, kept, BLOCK_TOKENS, TILE)
    bucket = Buckets(256, 5000, TILE).fitting(packed)
    assert bucket is not None
    assert bucket.singles * KV_HEADS == launched
    assert int(splits_of(np.array(keys)).sum()) * KV_HEADS == busy


PLACES, WIDTH = 4, 8


@given(st.data())
def test_the_device_has_the_blocks_of_every_row_and_gets_each_once(data: st.DataObject) -> None:
    """Rows come, grow, pause and return, and a sequence may have several."""
    kept = KeptTables(PLACES, WIDTH, torch.device("cpu"))
    tables = [BlockTable() for _ in range(2 * PLACES)]
    before: set[BlockTable] = set()  # of the iteration before
    had: dict[BlockTable, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        one = st.integers(0, len(tables) - 1)
        rows = data.draw(st.lists(one, min_size=1, max_size=PLACES))
        for row in set(rows):
            room = WIDTH - len(tables[row].blocks)
            tables[row].extend(data.draw(st.lists(st.integers(0, 99), max_size=room)))
        now = [tables[row] for row in rows]
        news = kept.news(now)
        if data.draw(st.booleans()):  # the iteration fails before its numbers are sent
            news = kept.news(now)
        kept.keep(news, torch.from_numpy(news.at), torch.from_numpy(news.blocks))
        on_device = kept.blocks.view(PLACES, WIDTH).numpy()
        for table, place in zip(now, news.places.tolist(), strict=True):
            count = len(table.blocks)
            assert np.array_equal(on_device[place, :count], table.blocks)
            assert np.array_equal(kept.host[place, :count], table.blocks)
        assert len(set(news.places.tolist())) == len(set(now))
        if set(now) <= before:
            assert len(news.at) == sum(len(table.blocks) - had[table] for table in set(now))
        before, had = set(now), {table: len(table.blocks) for table in now}
