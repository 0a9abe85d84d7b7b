"""What is accepted of a draft, and what is drawn after it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from requested import Sampling
from runtime.drafting.verification import accepted, places
from seams import Opening

tokens = st.lists(st.integers(0, 2), max_size=6)


@given(tokens, tokens)
def test_drafts_are_accepted_up_to_the_first_that_was_not_drawn_and_one_token_more(
    drafts: list[int], more: list[int]
) -> None:
    drawn = (more + [0] * 7)[: len(drafts) + 1]
    found = accepted(drafts, drawn)
    assert found == drawn[: len(found)]
    assert found[:-1] == drafts[: len(found) - 1]
    assert len(found) == len(drawn) or found[-1] != drafts[len(found) - 1]


def test_a_token_is_drawn_after_all_drafts_before_it() -> None:
    row = Opening(1, [4, 5], 1, Sampling(seed=3))
    found = places(row, [6, 7])
    assert [list(place.ids) for place in found] == [[4, 5], [4, 5, 6], [4, 5, 6, 7]]
    assert {(place.prompt_tokens, place.sampling) for place in found} == {(1, row.sampling)}
