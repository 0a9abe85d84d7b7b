"""The masks of a batch: of the rows with a constraint, which tokens may be drawn. They are computed
in a thread of their own, while the model's layers run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Place(Protocol):
    """In a grammar."""

    def fill(self, address: int) -> None:
        """Writes the mask of the token that comes next."""


class Row(Protocol):
    @property
    def matching(self) -> Place | None: ...


@dataclass(frozen=True, slots=True)
class Masks:
    places: NDArray[np.int64]  # [R] of each row's mask; -1: it has none
    bits: NDArray[np.int32]  # [M, ceil(V / 32)], bit i % 32 of word i // 32 is token i


class Masking:
    """Computes the masks of one batch after the other."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._thread = ThreadPoolExecutor(1, "masks")

    def begin(self, rows: Sequence[Row]) -> Future[Masks] | None:
        """None if no row has a constraint."""
        own = [row.matching for row in rows if row.matching is not None]
        if not own:
            return None
        places = np.full(len(rows), -1)
        places[[i for i, row in enumerate(rows) if row.matching is not None]] = range(len(own))
        return self._thread.submit(self._fill, own, places)

    def _fill(self, matchings: Sequence[Place], places: NDArray[np.int64]) -> Masks:
        # what is beyond the vocabulary, where the network is wider, stays forbidden
        bits = np.zeros((len(matchings), self._words), np.int32)
        address, row_bytes = bits.ctypes.data, bits.strides[0]
        for i, matching in enumerate(matchings):
            matching.fill(address + i * row_bytes)
        return Masks(places, bits)
