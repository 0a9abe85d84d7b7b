"""Drafts by prompt lookup are what followed the longest earlier match."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runtime.drafting.lookup import CANDIDATES, HEADS, LEAST_MATCH, MOST_MATCH, Lookup
from tests.examples import examples

few_tokens = st.lists(st.integers(0, 3), max_size=60)


def matched(ids: Sequence[int], at: int) -> int:
    """Tokens up to `at` that equal the newest ones."""
    length = 0
    while length <= at and ids[at - length] == ids[len(ids) - 1 - length]:
        length += 1
    return min(length, MOST_MATCH)


def expected(ids: Sequence[int], most: int) -> list[int]:
    """The definition, place by place, where no chain is longer than is followed."""
    best = max(range(len(ids) - 1), key=lambda at: (matched(ids, at), at), default=0)
    length = matched(ids, best) if len(ids) > LEAST_MATCH else 0
    if length < LEAST_MATCH:
        return []
    text = list(ids)
    for place in range(best + 1, best + 1 + min(most, 2 ** (length - 1))):
        text.append(text[place])
    return text[len(ids) :]


@given(few_tokens.filter(lambda ids: len(ids) < CANDIDATES), st.integers(1, 12))
@examples(200, 2000)
def test_a_draft_is_what_followed_the_longest_earlier_match(ids: list[int], most: int) -> None:
    assert Lookup(ids).draft(most) == expected(ids, most)


@given(few_tokens, few_tokens, st.integers(1, 12))
@examples(100, 1000)
def test_a_sequence_that_grew_is_drafted_like_one_that_was_there_at_once(
    ids: list[int], more: list[int], most: int
) -> None:
    grown = list(ids)
    lookup = Lookup(grown)
    for token in more:
        lookup.draft(most)
        grown.append(token)
    assert lookup.draft(most) == Lookup([*ids, *more]).draft(most)


@given(few_tokens, few_tokens, few_tokens, st.integers(1, 12))
@examples(100, 1000)
def test_earlier_tokens_are_looked_up_as_if_the_sequence_began_with_them(
    earlier: list[int], ids: list[int], more: list[int], most: int
) -> None:
    grown = list(ids)
    lookup = Lookup(grown, earlier)
    for tokens in (more[:3], more[3:]):
        assert lookup.draft(most) == Lookup([*earlier, *grown]).draft(most)
        grown += tokens
    assert grown == [*ids, *more]
    assert lookup.draft(most) == Lookup([*earlier, *grown]).draft(most)


def test_an_edited_text_is_drafted_from_the_prompt_and_found_again_after_the_edit() -> None:
    text = list(range(100, 140))
    ids = [*text, 7, *text[:10]]
    lookup = Lookup(ids)
    assert lookup.draft(8) == text[10:18]
    ids += [55, text[11]]  # the edit: 55 for text[10]
    assert lookup.draft(8) == []
    ids += [text[12]]
    assert lookup.draft(8) == text[13:15], "a short match is trusted for a short draft"
    ids += text[13:15]
    assert lookup.draft(8) == text[15:23]


def test_a_repeated_text_is_drafted_past_its_end() -> None:
    assert Lookup([1, 2, 3, 1, 2, 3, 1, 2]).draft(7) == [3, 1, 2, 3, 1, 2, 3]
    assert Lookup([9, 5, 5, 5, 5]).draft(4) == [5, 5, 5, 5]


def test_text_that_never_repeats_has_no_drafts() -> None:
    assert Lookup(range(5000)).draft(8) == []
    assert Lookup([3]).draft(8) == []


class Counted(list[int]):
    """Counts how often its tokens are read."""

    reads = 0

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().__getitem__(place)


def test_a_draft_reads_a_bounded_number_of_tokens_however_long_the_text_is() -> None:
    """Each new token is taken in once; a draft compares some places, whatever is alike."""
    ids = Counted([1, 2] * 20_000)
    lookup = Lookup(ids)
    lookup.draft(8)
    for token in (1, 2, 3, 1, 2):
        ids.append(token)
        ids.reads = 0
        lookup.draft(8)
        assert ids.reads <= 8 + 2 * CANDIDATES * MOST_MATCH
    assert len(lookup._before) == len(ids) - 1
    assert len(lookup._heads) == HEADS
    assert lookup._before.itemsize == 4
