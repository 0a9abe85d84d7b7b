"""The virtual token counter: what is charged, and what a user that comes back begins with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.inference import Inference
from requested import Sampling
from scheduling.policies.orders.vtc import VTC
from seams import Served
from tests.scheduling.shown import Shown, view

IDS = itertools.count(10_000)


def serve(order: VTC, user: int, tokens: int) -> None:
    """A prompt of this user, of so many tokens, is computed."""
    request = Shown(next(IDS), user=user, prompt_tokens=tokens, computed=tokens)
    order.observe([Served(request, tokens, 0)])


def asking(id: int, user: int, prompt_tokens: int = 4) -> Any:
    inference = Inference([1] * prompt_tokens, 8, Sampling(), float(id))
    inference.id, inference.user = id, user
    return inference


def order_of(
    order: VTC,
    waiting: Sequence[Any],
    resident: Sequence[Any] = (),
    hits: Mapping[int, int] | None = None,
) -> list[int]:
    shown = replace(view(hits=hits), waiting=list(waiting), resident=list(resident))
    return [request.id for request in order.first(shown, len(waiting))]


def test_a_prompt_token_costs_one_a_generated_one_two_and_a_prefix_hit_nothing() -> None:
    order = VTC()
    whole = Shown(1, user=1, prompt_tokens=100, computed=100, generated=1)
    order.observe([Served(whole, 100, 1)])
    cached = Shown(2, user=2, prompt_tokens=100, computed=100, generated=1)
    order.observe([Served(cached, 20, 1)])
    assert dict(order.served) == {1: 102.0, 2: 22.0}
    assert order_of(order, [asking(3, 2), asking(4, 1), asking(5, 2)]) == [3, 5, 4]


def test_a_prompt_is_charged_once_however_many_chunks_it_takes() -> None:
    order = VTC()
    for computed in (40, 80, 100):
        request = Shown(1, user=1, prompt_tokens=100, computed=computed)
        order.observe([Served(request, min(40, 100 - computed + 20), int(computed == 100))])
    decoded = Shown(1, user=1, prompt_tokens=100, generated=2, computed=101)
    order.observe([Served(decoded, 1, 1)])
    assert dict(order.served) == {1: 104.0}


def test_what_one_plan_admits_is_charged_within_it_without_prefix_hits() -> None:
    """Each of user 1 costs 10, each of user 2 costs 50."""
    waiting = [asking(id, user=1, prompt_tokens=100) for id in (1, 2, 3)]
    waiting += [asking(id, user=2, prompt_tokens=50) for id in (4, 5, 6)]
    hits = dict.fromkeys((1, 2, 3), 90)
    assert order_of(VTC(), waiting, hits=hits) == [1, 4, 2, 3, 5, 6]


def test_a_user_that_comes_back_is_lifted_to_the_smallest_counter_of_those_who_wait() -> None:
    order = VTC()
    serve(order, 1, 300)
    serve(order, 2, 1000)
    serve(order, 3, 20)
    serve(order, 4, 700)
    busy = [asking(1, 1), asking(2, 2)]
    order_of(order, busy)
    order_of(order, [*busy, asking(3, 3), asking(4, 4)])
    assert order.served[3] == order.served[1] == 300.0
    assert order.served[4] == 700.0, "it had more already"


def test_if_nobody_waits_it_is_lifted_to_the_counter_of_who_left_the_queue_last() -> None:
    order = VTC()
    serve(order, 1, 300)
    serve(order, 2, 1000)
    serve(order, 3, 5000)
    first, last = asking(1, 1), asking(2, 2)
    order_of(order, [first, last])
    first.resident = True
    order_of(order, [last], [first])
    last.resident = True
    order_of(order, [], [first, last])
    order_of(order, [asking(4, 4)], [first, last])
    assert order.served[4] == 1000.0
    order_of(order, [asking(4, 4), asking(5, 3)], [first, last])
    assert order.served[3] == 5000.0, "it had more already"
