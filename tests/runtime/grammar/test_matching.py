"""Places behind drafts: how far they go, and that they leave no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.names import EMBEDDED
from requested import Constraint
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Grammars
from runtime.grammar.matching import Matching, MatchingAhead
from tests.examples import examples
from tests.runtime.grammar.schemas import schemas
from tests.runtime.grammar.walks import allowed, shortest, walk
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(lambda: tokenizer)


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """Each letter as a token of its own."""
    return [tokenizer.encode(letter)[0] for letter in text]


def mask(place: Matching | MatchingAhead, vocab_size: int) -> bytes:
    bits = np.zeros(-(-vocab_size // 32), np.int32)
    place.fill(bits.ctypes.data)
    return bits.tobytes()


@pytest.mark.parametrize(
    ("pattern", "drafts", "alone", "count"),
    [
        ("[ab]{9}", "abab", False, 4),
        ("[ab]{9}", "abcb", False, 2),  # the grammar accepts no c
        ("[ab]{9}", "", False, 0),
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


def test_no_draft_is_an_end_token(grammars: Grammars, tokenizer: Tokenizer) -> None:
    matching = Matching(grammars, Constraint("regex", "a*"), letters(tokenizer, "a"))
    (end,) = tokenizer.end_ids
    drafts = [*letters(tokenizer, "a"), end, *letters(tokenizer, "a")]
    assert len(matching.ahead(drafts, alone=False)) == 1


@given(number=st.integers(0, 199), seed=st.integers(0, 9), alone=st.booleans(), data=st.data())
@examples(40, 1000)
def test_masks_behind_drafts_are_those_behind_the_same_tokens_and_leave_no_trace(
    number: int,
    seed: int,
    alone: bool,
    data: st.DataObject,
    grammars: Grammars,
    tokenizer: Tokenizer,
) -> None:
    """Also where the drafts go astray: the place then is what it is without them."""
    constraint = of_schema(schemas()[number])
    ids = walk(grammars, tokenizer, constraint, shortest(tokenizer, seed), 60, alone=alone)
    plain = Matching(grammars, constraint, ())
    drafted = Matching(grammars, constraint, ())
    drawn = random.Random(seed)
    at = 0
    while at < len(ids):
        drafts = ids[at : at + data.draw(st.integers(0, 8))]
        if drawn.random() < 0.5:
            drafts.append(drawn.choice(allowed(plain, tokenizer.vocab_size)))
        ahead = drafted.ahead(drafts, alone=alone)
        assert mask(drafted, tokenizer.vocab_size) == mask(plain, tokenizer.vocab_size)
        rights = 0
        for place, draft in zip(ahead, drafts, strict=False):
            if at == len(ids) or draft != ids[at]:
                mask(place, tokenizer.vocab_size)
                break
            assert plain.take(draft, alone=alone) == [draft], "nothing is forced behind a draft"
            assert mask(place, tokenizer.vocab_size) == mask(plain, tokenizer.vocab_size)
            assert not place.failed
            rights, at = rights + 1, at + 1
        drafted.accept(drafts[:rights])
        if at == len(ids):
            break
        followed = plain.take(ids[at], alone=alone)
        assert drafted.take(ids[at], alone=alone) == followed
        at += len(followed)
        assert (plain.error, drafted.error) == (None, None)


def test_a_draft_that_breaks_its_matcher_does_not_fail_the_sequence(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    matching = Matching(grammars, Constraint("regex", "[ab]{9}"), ())
    places = matching.ahead(letters(tokenizer, "ab"), alone=False)
    places[1]._matcher.consume_token(letters(tokenizer, "c")[0])  # an error from now on
    for place in places:
        mask(place, tokenizer.vocab_size)
    assert [place.failed for place in places] == [False, True]
    assert matching.error is None
    assert set(letters(tokenizer, "ab")) <= set(allowed(matching, tokenizer.vocab_size))


@pytest.mark.parametrize("timed", [True, False])
def test_of_several_shards_one_judges_the_time_of_masks(timed: bool, tokenizer: Tokenizer) -> None:
    matching = Matching(
        Grammars(lambda: tokenizer, timed=timed), Constraint("regex", "[ab]{4}xyz"), ()
    )
    matching.spend(3600.0)
    assert (matching.error is not None) == timed
    # a shard without an error takes the forced tokens
    drawn = letters(tokenizer, "abab")
    taken = [matching.take(token, alone=False) for token in drawn]
    assert (len(taken[-1]) > 1) == (not timed)
