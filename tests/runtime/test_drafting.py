"""Drafts by prompt lookup are what followed the longest earlier match."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runtime.drafting import CANDIDATES, LEAST_MATCH, MOST_MATCH, Lookup
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


@given(few_tokens, few_tokens, few_tokens, st.integers(1, 12))
@examples(100, 1000)
def test_a_text_that_grew_and_earlier_tokens_are_looked_up_as_if_all_was_there_at_once(
    earlier: list[int], ids: list[int], more: list[int], most: int
) -> None:
    grown = list(ids)
    lookup = Lookup(grown, earlier)
    for token in more:
        assert lookup.draft(most) == Lookup([*earlier, *grown]).draft(most)
        grown.append(token)
    assert grown == [*ids, *more]
    assert lookup.draft(most) == Lookup([*earlier, *grown]).draft(most)
