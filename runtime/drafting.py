"""Drafts by prompt lookup: what followed the newest tokens where they stood before.

Saxena, "Prompt Lookup Decoding" (2023); Oliaro et al., "SuffixDecoding" (arXiv 2411.04975) for the
longest match. Text that is edited, quoted or repeated holds its own continuation, and so does the
answer that a client expects; no draft model is needed. The longest earlier match is found as by
LZ77 compressors (RFC 1951, section 4): places with the same two tokens form a chain, the newest
first, and a bounded number of them are compared. A token takes about a microsecond to add, a draft
some ten; memory is 4 bytes a token and a table of fixed size for each sequence.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

LEAST_MATCH = 2  # tokens: after a single equal one, most drafts are rejected
MOST_MATCH = 32  # compared; longer matches count as equally good
CANDIDATES = 16  # places of a chain that are compared
HEADS = 1 << 12
NOWHERE = -1


class Lookup:
    """The places of a sequence's tokens. `ids` is the sequence's own list, which only grows."""

    __slots__ = ("_before", "_copy", "_earlier", "_heads", "_text", "ids")

    def __init__(self, ids: Sequence[int], earlier: Sequence[int] = ()) -> None:
        """`earlier`: tokens that are looked up as if they stood before the sequence."""
        self.ids = ids
        self._earlier = len(earlier)
        self._copy = [*earlier]  # grows with the sequence
        self._text = self._copy if earlier else ids
        self._heads = array("i", [NOWHERE]) * HEADS  # the newest place of each pair, by its hash
        self._before = array("i", [NOWHERE])  # of each place, the one before it in its chain

    def draft(self, most: int) -> list[int]:
        """Up to `most` tokens that may come next; fewer after a short match, none without one."""
        self._take_in()
        at, length = self._match()
        if length < LEAST_MATCH:
            return []
        text, distance = self._text, len(self._text) - 1 - at
        count = min(most, 1 << (length - 1))
        found = list(text[at + 1 : at + 1 + count])
        while len(found) < count:  # the match reaches up to now, so the text may be periodic
            found.append(found[-distance])
        return found

    def _take_in(self) -> None:
        """Adds the places of new tokens, the newest excepted, which is not an earlier one yet."""
        text, heads, before = self._text, self._heads, self._before
        if text is self._copy:
            self._copy += self.ids[len(text) - self._earlier :]
        for place in range(len(before), len(text) - 1):
            chain = (text[place - 1] * 31 + text[place]) % HEADS
            before.append(heads[chain])
            heads[chain] = place

    def _match(self) -> tuple[int, int]:
        """The end of the longest earlier match of the newest tokens, and its length; of equally
        long ones the newest."""
        text, end = self._text, len(self._text) - 1
        if end < LEAST_MATCH:
            return NOWHERE, 0
        best_at, best = NOWHERE, 0
        at = self._heads[(text[end - 1] * 31 + text[end]) % HEADS]
        for _ in range(CANDIDATES):
            if at == NOWHERE:
                break
            length, most = 0, min(at + 1, MOST_MATCH)
            while length < most and text[at - length] == text[end - length]:
                length += 1
            if length > best:
                best_at, best = at, length
                if best == MOST_MATCH:
                    break
            at = self._before[at]
        return best_at, best
