"""Deficit longest prefix match: prefixes decide among the users who are not too far ahead."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from scheduling.policies.orders.dlpm import DLPM, QUANTUM, WINDOW
from scheduling.policies.orders.vtc import VTC
from seams import Served
from tests.scheduling.shown import Shown, view

IDS = itertools.count(10_000)


def serve(order: VTC, user: int, tokens: int) -> None:
    """A prompt of this user, of so many tokens, is computed."""
    request = Shown(next(IDS), user=user, prompt_tokens=tokens, computed=tokens)
    order.observe([Served(request, tokens, 0)])


def order_of(order: VTC, *waiting: Shown, hits: Mapping[int, int] | None = None) -> list[int]:
    shown = view(waiting, hits=hits)
    return [request.id for request in order.first(shown, len(waiting))]


def asking(id: int, user: int) -> Shown:
    return Shown(id, user=user, prompt_tokens=100)


LEAST, AHEAD = 1, 2
# the user who was served least comes first, since a user who comes later would be lifted to it
WAITING = asking(1, LEAST), asking(2, AHEAD), asking(3, LEAST)
HITS = {2: 80, 3: 40}


@pytest.mark.parametrize(
    ("served", "expected"), [(0, [2, 3, 1]), (QUANTUM - 1, [2, 3, 1]), (QUANTUM, [3, 1, 2])]
)
def test_the_longest_prefix_hit_is_first_unless_its_user_is_a_quantum_ahead(
    served: float, expected: list[int]
) -> None:
    order = DLPM()
    if served:
        serve(order, AHEAD, int(served))
    assert order_of(order, *WAITING, hits=HITS) == expected


def test_a_user_competes_again_once_the_least_served_one_has_caught_up() -> None:
    order = DLPM()
    serve(order, AHEAD, int(QUANTUM) + 100)
    assert order_of(order, *WAITING, hits=HITS) == [3, 1, 2]
    serve(order, LEAST, 100)
    assert order_of(order, *WAITING, hits=HITS) == [3, 1, 2]
    serve(order, LEAST, 1)
    assert order_of(order, *WAITING, hits=HITS) == [2, 3, 1]


def test_users_that_are_ahead_are_in_the_order_of_their_counters_whatever_is_cached() -> None:
    order = DLPM()
    serve(order, 2, int(QUANTUM) + 900)
    serve(order, 3, int(QUANTUM) + 400)
    waiting = asking(1, 1), asking(2, 2), asking(3, 3)
    assert order_of(order, *waiting, hits={2: 80}) == [1, 3, 2]


def test_among_equal_hits_the_user_who_was_served_least_is_first() -> None:
    waiting = [asking(id, user) for id, user in enumerate((1, 2, 3, 1, 1, 2))]
    found = []
    for order in (DLPM(), VTC()):
        serve(order, 2, 150)
        serve(order, 3, 50)
        found.append(order_of(order, *waiting))
    assert found[0] == found[1] == [0, 2, 3, 1, 4, 5]


def test_prefixes_are_compared_among_the_first_of_the_window() -> None:
    waiting = [asking(id, 1) for id in range(WINDOW + 5)]
    inside, outside = {WINDOW - 1: 80}, {WINDOW: 80}
    for hits, first in ((inside, WINDOW - 1), (outside, 0)):
        (request,) = DLPM().first(view(waiting, hits=hits), 1)
        assert request.id == first
