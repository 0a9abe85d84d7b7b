"""The sizes for which iterations are recorded as CUDA graphs, and the size that an iteration takes.

A graph has fixed shapes, so an iteration runs in the next larger one and the rest is padding. Two
kinds: decodes alone, in sizes close together, since nearly all iterations are of this kind and
padding costs; and any mixture of prompts, chunks and decodes, by the number of tokens. Both exist
for several numbers of splits (programs that read the keys of such a row): 1, which saves the merge,
4, or as many as any row has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.gpu.paged import MOST_SPLITS, SPLIT_KEYS
from runtime.gpu.paged import Packed
from runtime.transfer import Array

MOST_ROWS = 512  # that decode in a graph of decodes alone
DECODES = (1, 2, 4, 8, *range(16, MOST_ROWS + 1, 16))
# A larger iteration is long enough to hide its launches.
MIXED = (
    *(16, 32, 64, 128, 192, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
SPLITS = (1, 4, MOST_SPLITS)  # of each row with one new token; some may have more, others less


@dataclass(frozen=True, slots=True)
class Bucket:
    """The most that a graph holds."""

    tokens: int  # padding included
    rows: int  # one more than may be used: padding refers to the last, which is empty
    singles: int  # splits of the rows with one new token
    pieces: int  # tiles of the other rows
    kept: int  # places whose hidden states are wanted

    @property
    def splits(self) -> bool:
        """Whether a row may have several, which are merged."""
        return self.singles >= self.rows

    @property
    def keeps_all(self) -> bool:
        """Whether the hidden states of all tokens are computed to the end."""
        return not self.pieces

    def holds(self, of: Packed[Array]) -> bool:
        return (
            len(of.tokens) <= self.tokens
            and len(of.rows) < self.rows
            and of.singles <= self.singles
            and len(of.tiles) - of.singles <= self.pieces
            and len(of.kept) <= self.kept
            and of.splits <= self.splits
        )


class Buckets:
    """All sizes for batches of up to `max_rows` and sequences of up to `context` tokens."""

    def __init__(self, max_rows: int, context: int, tile_tokens: int) -> None:
        """`tile_tokens`: of a prompt, which the kernel computes together."""
        self._max_rows, self._tile_tokens = max_rows, tile_tokens
        self._splits = list(_up_to(min(MOST_SPLITS, -(-context // SPLIT_KEYS)), SPLITS))
        self._decodes = list(_up_to(min(max_rows, MOST_ROWS), DECODES))
        self._mixed = list(_up_to(max_rows * context, MIXED))

    def __iter__(self) -> Iterator[Bucket]:
        """The largest first: what a later one needs fits into the memory of an earlier one."""
        for splits in reversed(self._splits):
            for tokens in reversed(self._mixed):
                yield self._mixture(tokens, splits)
            for tokens in reversed(self._decodes):
                yield self._of_decodes(tokens, splits)

    def fitting(self, of: Packed[Array]) -> Bucket | None:
        """The smallest that holds the iteration; None if it runs without a graph."""
        found: list[Bucket] = []
        if len(of.tiles) == of.singles and not of.shared:  # a graph of decodes allows no drafts
            tokens = _least(self._decodes, len(of.tokens))
            found += [self._of_decodes(tokens, splits) for splits in self._splits if tokens]
        tokens = _least(self._mixed, len(of.tokens))
        found += [self._mixture(tokens, splits) for splits in self._splits if tokens]
        return next((bucket for bucket in found if bucket.holds(of)), None)

    def _of_decodes(self, tokens: int, splits: int) -> Bucket:
        return Bucket(tokens, tokens + 1, tokens * splits, 0, tokens)

    def _mixture(self, tokens: int, splits: int) -> Bucket:
        rows = min(self._max_rows, tokens)
        # a prompt's last tile is not full, and the shortest prompt has two tokens
        pieces = tokens // self._tile_tokens + min(rows, tokens // 2)
        return Bucket(tokens, rows + 1, rows * splits, pieces, rows)


def _up_to(most: int, sizes: Sequence[int]) -> Iterator[int]:
    """The ascending sizes up to the first that is `most` or more."""
    for size in sizes:
        yield size
        if size >= most:
            return


def _least(sizes: Sequence[int], count: int) -> int | None:
    at = bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else None
