"""Block tables on a device, which are sent once: later iterations send the blocks that are new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.cache import BlockTable


class News(NamedTuple):
    """What the device does not have yet of an iteration's tables."""

    places: NDArray[np.int64]  # of the rows' tables
    at: NDArray[np.int64]  # where these blocks belong in `KeptTables.blocks`
    blocks: NDArray[np.int32]
    counts: NDArray[np.int64]  # blocks of each row
    shared: bool  # a table occurs several times


class KeptTables:
    """Places for tables of up to `width` blocks. One that an iteration does not use gives its place
    to one that has none. `blocks` `[places * width]` is on the device, `host` `[places, width]` its
    copy."""

    def __init__(self, places: int, width: int, device: torch.device) -> None:
        self.width = width
        self.host = np.zeros((places, width), dtype=np.int32)
        self.blocks = torch.zeros(places * width, dtype=torch.int32, device=device)
        self._place_of: dict[BlockTable, int] = {}
        self._counts = np.zeros(places, dtype=np.int64)  # blocks that the device has
        self._newest: tuple[list[BlockTable], NDArray[np.int64]] = [], np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.host)

    def news(self, tables: Sequence[BlockTable]) -> News:
        """For an iteration of these rows' tables, of which no more differ than there are places. A
        table may occur several times. Call `keep` with it when its numbers are on the device."""
        newest, places = self._newest
        if tables != newest:  # often the iteration before had the same
            places = self._seat(tables)
            self._newest = list(tables), places
        counts = np.array([table.count for table in tables], dtype=np.int64)
        at, blocks = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
        stale = np.flatnonzero(counts != self._counts[places])
        for i in stale[np.unique(places[stale], return_index=True)[1]].tolist():
            place, count = int(places[i]), int(counts[i])
            here = int(self._counts[place])
            new = tables[i].blocks[here:]
            self.host[place, here:count] = new
            at.append(place * self.width + np.arange(here, count))
            blocks.append(new)
        shared = len(set(tables)) < len(tables)
        return News(places, np.concatenate(at), np.concatenate(blocks), counts, shared)

    def keep(self, news: News, at: Tensor, blocks: Tensor) -> None:
        """Stores the news, of which the tensors are the numbers on the device."""
        if len(news.at):
            with torch.inference_mode():
                self.blocks.index_copy_(0, at, blocks)
            self._counts[news.places] = news.counts

    def _seat(self, tables: Sequence[BlockTable]) -> NDArray[np.int64]:
        """A place for each."""
        place_of, now = self._place_of, set(tables)
        free = iter(range(len(place_of), len(self)))
        left = iter([table for table in place_of if table not in now])
        for table in dict.fromkeys(tables):
            if table not in place_of:
                place = next(free, -1)
                if place < 0:
                    place = place_of.pop(next(left))
                place_of[table] = place
                self._counts[place] = 0
        return np.array([place_of[table] for table in tables], dtype=np.int64)
