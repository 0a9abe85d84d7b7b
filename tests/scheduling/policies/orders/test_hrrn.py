"""Highest response ratio next: the wait over the work, both in tokens of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.orders.hrrn import HRRN
from tests.scheduling.shown import Shown, view

COMPUTED = 1000  # tokens of prompts since the server started


def order_of(*waiting: Shown, hits: Mapping[int, int] | None = None) -> list[int]:
    shown = replace(view(waiting, hits=hits), prefill_tokens=COMPUTED)
    return [request.id for request in HRRN().first(shown, len(waiting))]


def waits(id: int, since: int, prompt_tokens: int) -> Shown:
    """It has seen the server compute `since` tokens of prompts."""
    return Shown(id, prompt_tokens=prompt_tokens, prefill_before=COMPUTED - since)


def test_of_requests_that_waited_equally_long_the_shorter_prompt_is_first() -> None:
    assert order_of(waits(1, 100, 50), waits(2, 100, 5)) == [2, 1]


def test_a_long_prompt_that_has_waited_for_long_comes_before_a_short_one() -> None:
    assert order_of(waits(1, 400, 200), waits(2, 5, 5)) == [1, 2]
    assert order_of(waits(1, 400, 200), waits(2, 15, 5)) == [2, 1]


def test_prefix_hits_are_no_work() -> None:
    long, short = waits(1, 100, 50), waits(2, 100, 10)
    assert order_of(long, short) == [2, 1]
    assert order_of(long, short, hits={1: 45}) == [1, 2]


@given(st.lists(st.tuples(st.integers(0, COMPUTED), st.integers(1, 60)), max_size=12))
def test_ratios_fall_along_the_queue_and_of_equals_the_older_is_first(
    told: list[tuple[int, int]],
) -> None:
    ratio = {id: since / prompt for id, (since, prompt) in enumerate(told)}
    found = order_of(*(waits(id, since, prompt) for id, (since, prompt) in enumerate(told)))
    assert found == sorted(ratio, key=lambda id: (-ratio[id], id))
