"""Block tables on the device: only what is new of them is sent."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.cache import BlockTable
from runtime.gpu.tables import KeptTables

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
