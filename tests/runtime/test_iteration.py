"""A sequence's tokens as the model knows them."""

from __future__ import annotations

import pytest

from models.names import EMBEDDED
from requested import Constraint, Sampling
from runtime.grammar.grammars import Grammars
from runtime.iteration import KnownSequence
from seams import Opening
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


def test_nothing_counts_behind_a_draft_whose_mask_could_not_be_computed(
    tokenizer: Tokenizer,
) -> None:
    """What was drawn there means nothing, even if it is what was drafted."""
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    sampling = Sampling(constraint=Constraint("regex", "[ab]{9}"))
    row = KnownSequence(Opening(1, [5], 1, sampling), Grammars(lambda: tokenizer))
    assert row.matching is not None
    drafts = [a, b, a, b]
    row.ahead = row.matching.ahead(drafts, alone=False)
    row.ahead[2].failed = True
    assert row.receive(drafts, [a, b, a, b, a], 1) == ([a, b, a], 2)
    assert row.ids == [5, a, b, a]
    assert row.error is None
