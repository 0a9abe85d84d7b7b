"""A sequence's place in its grammar: masks, the same however they are computed, what is forced, and
places behind drafts, which leave no trace."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from requested import Constraint, Sampling
from runtime.grammar import matching as module
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Grammars
from runtime.grammar.matching import Matching
from runtime.iteration import KnownSequence
from seams import Opening
from tests.examples import examples
from tests.runtime.grammar.conftest import allowed, mask_of, shortest, walk
from tests.runtime.grammar.schemas import schemas
from tests.support.hash_app import byte_tokenizer
from text.tokenizer import Tokenizer

PATTERNS = ["[a-z ]{1,30}", r"(\w+ ){1,9}", "[^aeiou]{3,}", ".*x.{4}"]
some_schemas = st.sampled_from(schemas()).map(of_schema)
constraints = some_schemas | st.sampled_from(PATTERNS).map(lambda p: Constraint("regex", p))


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """Each letter as a token of its own."""
    return [tokenizer.encode(letter)[0] for letter in text]


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


@given(constraint=some_schemas, seed=st.integers(0, 9), alone=st.booleans(), data=st.data())
@examples(20, 1000)
def test_masks_behind_drafts_are_those_behind_the_same_tokens_and_leave_no_trace(
    constraint: Constraint,
    seed: int,
    alone: bool,
    data: st.DataObject,
    grammars: Grammars,
    tokenizer: Tokenizer,
) -> None:
    """Also where the drafts go astray: the place then is what it is without them."""
    size = tokenizer.vocab_size
    ids = walk(grammars, tokenizer, constraint, shortest(tokenizer, seed), 60, alone=alone)
    plain, drafted = (Matching(grammars, constraint, ()) for _ in range(2))
    drawn = random.Random(seed)
    at = 0
    while at < len(ids):
        drafts = ids[at : at + data.draw(st.integers(0, 8))]
        if drawn.random() < 0.5:
            drafts.append(drawn.choice(allowed(plain, size)))
        ahead = drafted.ahead(drafts, alone=alone)
        assert np.array_equal(mask_of(drafted, size), mask_of(plain, size))
        rights = 0
        for place, draft in zip(ahead, drafts, strict=False):
            if at == len(ids) or draft != ids[at]:
                mask_of(place, size)
                break
            assert plain.take(draft, alone=alone) == [draft], "nothing is forced behind a draft"
            assert np.array_equal(mask_of(place, size), mask_of(plain, size))
            assert not place.failed
            rights, at = rights + 1, at + 1
        drafted.accept(drafts[:rights])
        if at == len(ids):
            break
        followed = plain.take(ids[at], alone=alone)
        assert drafted.take(ids[at], alone=alone) == followed
        at += len(followed)
        assert (plain.error, drafted.error) == (None, None)


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


@given(constraint=some_schemas)
def test_forced_tokens_and_a_place_found_again_are_what_masks_alone_say(
    constraint: Constraint, grammars: Grammars, tokenizer: Tokenizer
) -> None:
    """The tokens are the same, whether several are taken at once or each is drawn."""

    def choose(tokens: Sequence[int]) -> int:
        """By what is allowed, however often it is asked."""
        return tokens[0] if len(tokens) == 1 else random.Random(str(tokens)).choice(tokens)

    together = walk(grammars, tokenizer, constraint, choose, 40)
    alone = walk(grammars, tokenizer, constraint, choose, 40, alone=True)
    shorter = min(len(together), len(alone))
    assert together[:shorter] == alone[:shorter]
    matching = Matching(grammars, constraint, ())
    for number, token in enumerate(alone):
        again = Matching(grammars, constraint, alone[:number])
        assert allowed(again, tokenizer.vocab_size) == allowed(matching, tokenizer.vocab_size)
        matching.take(token, alone=True)


def test_a_single_end_token_is_forced_where_nothing_else_may_follow(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    matching = Matching(grammars, Constraint("regex", "[ab]"), ())
    (a,) = letters(tokenizer, "a")
    assert matching.take(a, alone=False) == [a, *tokenizer.end_ids]


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


@pytest.fixture(scope="module")
def sliced_and_plain(tokenizer: Tokenizer) -> tuple[Grammars, Grammars]:
    """With slices, and looking at every token."""
    sliced, plain = Grammars(lambda: tokenizer), Grammars(lambda: tokenizer)
    assert plain.loaded.tokenizer is not None
    without = plain.loaded.tokenizer.with_slices([])
    plain._loaded = dataclasses.replace(plain.loaded, tokenizer=without)
    return sliced, plain


@given(constraints, st.data())
def test_slices_change_no_mask(sliced_and_plain, tokenizer, constraint, data) -> None:  # type: ignore[no-untyped-def]
    sliced, plain = (Matching(grammars, constraint, ()) for grammars in sliced_and_plain)
    for _ in range(20):
        tokens = allowed(sliced, tokenizer.vocab_size)
        assert tokens == allowed(plain, tokenizer.vocab_size)
        token = data.draw(st.sampled_from(tokens))
        assert sliced.take(token, alone=False) == plain.take(token, alone=False)
        if sliced.error is not None or token in tokenizer.end_ids:
            break


def test_ends_for_which_the_vocabulary_has_no_token_are_left_out() -> None:
    """A server must start with such a model, as it does without constraints."""
    tokenizer = byte_tokenizer()
    own = tokenizer.end_ids
    tokenizer.end_ids = own | {tokenizer.vocab_size, 100_000}  # type: ignore[misc]
    assert Grammars(lambda: tokenizer).loaded.ends == sorted(own)
    tokenizer.end_ids = frozenset({100_000})  # type: ignore[misc]
    assert Grammars(lambda: tokenizer).loaded.tokenizer is None
