"""A sequence's place in its grammar: masks, the same however they are computed, what is forced, and
places behind drafts, which leave no trace."""

from __future__ import annotations

import pytest

from runtime.grammar import matching as module
from runtime.grammar.grammars import Grammars
from runtime.grammar.matching import Matching
from runtime.sequence import KnownSequence
from seams import Constraint, Opening, Sampling
from tests.runtime.grammar.conftest import allowed, mask_of
from tests.support.hash_app import byte_tokenizer
from text.tokenizer import Tokenizer


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """Each letter as a token of its own."""
    return [tokenizer.encode(letter)[0] for letter in text]


@pytest.mark.parametrize(
    ("pattern", "drafts", "alone", "count"),
    [
        ("[ab]{9}", "abab", False, 4),
        ("[ab]{9}", "abcb", False, 2),  # the grammar accepts no c
        ("[ab]{4}", "abab", False, 3),  # the fourth ends the text
        ("[ab]{4}", "abab", True, 3),
        ("[ab]{2}xyz[ab]{2}", "abxyz", False, 1),  # behind the second, xyz is forced
        ("[ab]{2}xyz[ab]{2}", "abxyzab", True, 6),
    ],
)
def test_drafts_end_where_the_grammar_ends_them_or_forces_what_follows(
    pattern: str, drafts: str, alone: bool, count: int, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    matching = Matching(grammars, Constraint("regex", pattern), ())
    assert len(matching.ahead(letters(tokenizer, drafts), alone=alone)) == count


def test_nothing_counts_behind_a_draft_whose_mask_could_not_be_computed(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    """What was drawn there means nothing, even if it is what was drafted; and the sequence itself
    does not fail."""
    sampling = Sampling(constraint=Constraint("regex", "[ab]{9}"))
    row = KnownSequence(Opening(1, [5], 1, sampling), grammars)
    assert row.matching is not None
    drafts = letters(tokenizer, "abab")
    row.ahead = row.matching.ahead(drafts, alone=False)
    row.ahead[2]._matcher.consume_token(letters(tokenizer, "c")[0])  # an error from now on
    for place in row.ahead:
        mask_of(place, tokenizer.vocab_size)
    assert [place.failed for place in row.ahead] == [False, False, True, False]
    assert row.receive(drafts, [*drafts, drafts[0]], 1) == (drafts[:3], 2)
    assert row.ids == [5, *drafts[:3]]
    assert row.error is None
    assert set(drafts) <= set(allowed(row.matching, tokenizer.vocab_size))


@pytest.mark.parametrize("timed", [True, False])
def test_of_several_shards_one_judges_the_time_of_masks(
    timed: bool, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FREE_S", -1.0)
    of = Grammars(lambda: tokenizer, timed=timed)
    matching = Matching(of, Constraint("regex", "[ab]{4}xyz"), ())
    allowed(matching, tokenizer.vocab_size)
    assert ("ms each" in (matching.error or "")) == timed
    # a shard without an error takes the forced tokens
    taken = [matching.take(token, alone=False) for token in letters(tokenizer, "abab")]
    assert (len(taken[-1]) > 1) == (not timed)


def test_ends_for_which_the_vocabulary_has_no_token_are_left_out() -> None:
    """A server must start with such a model, as it does without constraints."""
    tokenizer = byte_tokenizer()
    own = tokenizer.end_ids
    tokenizer.end_ids = own | {tokenizer.vocab_size, 100_000}  # type: ignore[misc]
    assert Grammars(lambda: tokenizer).loaded.ends == sorted(own)
    tokenizer.end_ids = frozenset({100_000})  # type: ignore[misc]
    assert Grammars(lambda: tokenizer).loaded.tokenizer is None
