"""The masks of a batch: of the rows with a constraint, which tokens may be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Place(Protocol):
    """In a grammar."""

    def fill(self, address: int) -> None:
        """Writes the mask of the token that comes next."""


class ConstrainedRow(Protocol):
    @property
    def matching(self) -> Place | None: ...


@dataclass(frozen=True, slots=True)
class Masks:
    places: NDArray[np.int64]  # [R] of each row's mask; -1: it has none
    bits: NDArray[np.int32]  # [M, ceil(V / 32)], bit i % 32 of word i // 32 is token i


def masks_of(rows: Sequence[ConstrainedRow], vocab_size: int) -> Masks | None:
    """None if no row has a constraint. What is beyond the vocabulary, where the network is wider,
    stays forbidden."""
    own = [(i, row.matching) for i, row in enumerate(rows) if row.matching is not None]
    if not own:
        return None
    bits = np.zeros((len(own), -(-vocab_size // 32)), np.int32)
    places = np.full(len(rows), -1)
    address, row_bytes = bits.ctypes.data, bits.strides[0]
    for k, (i, matching) in enumerate(own):
        places[i] = k
        matching.fill(address + k * row_bytes)
    return Masks(places, bits)
