"""Drafts of known texts, so that tests decide which of them are right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from runtime.drafting import Lookup


def recall(texts: Sequence[Sequence[int]], patch: pytest.MonkeyPatch, vocab_size: int) -> None:
    """Drafts become what follows in the first text that begins alike: none, one, two ... of them
    right, in turn."""
    turn = itertools.count()

    def draft(lookup: Lookup, most: int) -> list[int]:
        known = list(lookup.ids)
        for text in texts:
            ahead = list(text[len(known) : len(known) + most])
            if ahead and list(text[: len(known)]) == known:
                kept = next(turn) % (len(ahead) + 1)
                return ahead[:kept] + [(token + 1) % vocab_size for token in ahead[kept:]]
        return []

    patch.setattr(Lookup, "draft", draft)
