"""Which drafts are accepted: those that equal what is drawn at their place.

Noise is a function of seed and position, so what is drawn after accepted drafts is what would have
been drawn without any. Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding" (ICLR '23) accept drafts by chance instead, and keep the distribution; an exact match
keeps the very tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from runtime.sampling.sampler import Known

if TYPE_CHECKING:
    from runtime.grammar.matching import MatchingAhead

Row = TypeVar("Row", bound=Known)


def accepted(drafts: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The drawn tokens that count: `drawn[j]` if the drafts before it were drawn, too."""
    count = 0
    while count < len(drafts) and drafts[count] == drawn[count]:
        count += 1
    return list(drawn[: count + 1])


class Ahead:
    """A sequence as if some drafts were known: what is drawn after them counts them, too. A
    `runtime.sampling.sampler.Known`."""

    __slots__ = ("ids", "matching", "prompt_tokens", "sampling")

    def __init__(
        self, row: Known, drafts: Sequence[int], matching: MatchingAhead | None = None
    ) -> None:
        self.ids = [*row.ids, *drafts]
        self.prompt_tokens, self.sampling = row.prompt_tokens, row.sampling
        self.matching = matching


def places(
    row: Row, drafts: Sequence[int], matchings: Sequence[MatchingAhead] = ()
) -> list[Row | Ahead]:
    """The sequence as it is where each of its next tokens is drawn. `matchings`: behind each
    draft; none without a constraint."""
    ahead = [
        Ahead(row, drafts[: j + 1], matchings[j] if matchings else None) for j in range(len(drafts))
    ]
    return [row, *ahead]
