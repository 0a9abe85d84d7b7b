"""Fair orders: the virtual token counter, what is charged, what a user that comes back begins with;
and prefixes that decide among the users who are not too far ahead."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from requested import Sampling
from scheduling.policies.orders.dlpm import DLPM, QUANTUM, WINDOW
from scheduling.policies.orders.vtc import GENERATED_TOKEN, PROMPT_TOKEN, VTC
from seams import Served
from tests.batching.modes import DYNAMIC_MODES
from tests.batching.virtual import World, check_closed
from tests.examples import examples
from tests.scheduling.shown import Shown, order_of, view

IDS = itertools.count(10_000)
MODE = next(mode for mode in DYNAMIC_MODES if mode.name == "vtc, reserve")


def serve(order: VTC, user: int, tokens: int) -> None:
    """A prompt of this user, of so many tokens, is computed."""
    request = Shown(next(IDS), user=user, prompt_tokens=tokens, computed=tokens)
    order.observe([Served(request, tokens, 0)])


def asking(id: int, user: int, prompt_tokens: int = 4) -> Any:
    inference = Inference([1] * prompt_tokens, 8, Sampling(), float(id))
    inference.id, inference.user = id, user
    return inference


def test_a_prompt_token_costs_one_a_generated_one_two_and_a_prefix_hit_nothing() -> None:
    order = VTC()
    whole = Shown(1, user=1, prompt_tokens=100, computed=100, generated=1)
    order.observe([Served(whole, 100, 1)])
    cached = Shown(2, user=2, prompt_tokens=100, computed=100, generated=1, cached_tokens=80)
    order.observe([Served(cached, 20, 1)])
    assert dict(order.served) == {1: 102.0, 2: 22.0}
    assert order_of(order, [asking(3, 2), asking(4, 1), asking(5, 2)]) == [3, 5, 4]


def test_what_one_plan_admits_is_charged_within_it_without_prefix_hits() -> None:
    """Each of user 1 costs 10, each of user 2 costs 50."""
    waiting = [asking(id, user=1, prompt_tokens=100) for id in (1, 2, 3)]
    waiting += [asking(id, user=2, prompt_tokens=50) for id in (4, 5, 6)]
    hits = dict.fromkeys((1, 2, 3), 90)
    assert order_of(VTC(), waiting, hits=hits) == [1, 4, 2, 3, 5, 6]


def test_a_user_that_comes_back_is_lifted_to_the_smallest_counter_of_those_who_wait() -> None:
    order = VTC()
    for user, tokens in ((1, 300), (2, 1000), (3, 20), (4, 700)):
        serve(order, user, tokens)
    busy = [asking(1, 1), asking(2, 2)]
    order_of(order, busy)
    order_of(order, [*busy, asking(3, 3), asking(4, 4)])
    assert order.served[3] == order.served[1] == 300.0
    assert order.served[4] == 700.0, "it had more already"


def test_if_nobody_waits_it_is_lifted_to_the_counter_of_who_left_the_queue_last() -> None:
    order = VTC()
    first, last = asking(1, 2), asking(2, 1)
    order_of(order, [first, last])
    serve(order, 1, 300)
    serve(order, 2, 1000)
    first.resident = True
    order_of(order, [last], [first])
    last.resident = True
    order_of(order, [], [first, last])
    order_of(order, [asking(4, 4)], [first, last])
    assert order.served[4] == 300.0


@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_idle_time_is_no_credit_for_a_user_who_comes_while_no_one_waits(lookahead: int) -> None:
    world = World(MODE, max_batch_size=1, lookahead=lookahead)
    first = world.submit([1] * 5, 30, user=1)
    for _ in range(3):
        world.step()
    order = world.policy.policy.order  # type: ignore[attr-defined]
    world.submit([2] * 5, 2, user=2)
    before = order.served[1]
    world.step()
    assert first.resident
    assert order.served[2] >= before > 0


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("prompt", [5, 15])
def test_a_prompt_is_charged_whole_though_the_next_iteration_is_in_flight(
    lookahead: int, prompt: int
) -> None:
    """The budget is 10 tokens an iteration."""
    world = World(MODE, lookahead=lookahead)
    world.submit([1] * prompt, 4, user=1)
    world.run()
    check_closed(world)
    order = world.policy.policy.order  # type: ignore[attr-defined]
    assert order.served[1] == prompt + 2 * 4


def test_among_deferred_requests_a_newcomer_is_lifted_to_who_waits_not_to_who_left() -> None:
    """The deferred policies show the newcomer first."""
    order = VTC()
    serve(order, 2, 100)
    serve(order, 3, 5000)
    left, deferred, newcomer = asking(1, 3), asking(2, 2), asking(7, 9)
    order_of(order, [deferred, left], num_deferred=1)
    left.resident = True
    order_of(order, [deferred], [left], num_deferred=1)
    assert order_of(order, [newcomer, deferred], [left], num_deferred=1) == [2, 7]
    assert order.served[9] == 100.0


@pytest.mark.parametrize("name", ["vtc", "dlpm"])
def test_with_one_user_it_does_nothing_also_where_requests_are_preempted(name: str) -> None:
    ends = []
    for policy in (name, "stall-free"):
        mode = next(mode for mode in DYNAMIC_MODES if mode.name == f"{policy}, optimistic")
        world = World(mode, max_batch_size=3, budget=60)
        requests = [world.submit([n % 13] * 4, 24, n) for n in range(40)]
        world.run()
        check_closed(world)
        assert any(request.num_preemptions for request in requests)
        ends.append([request.record.end_s for request in requests if request.record])
    assert ends[0] == ends[1]


def test_end_users_take_turns_also_beside_deferred_requests() -> None:
    world = World(MODE, max_batch_size=1)
    for _ in range(2):
        world.submit([1] * 4, 120, user=9, service_class="deferred", stored=True)
    first = [world.submit([n] * 4, 6, user=1, end_user=1) for n in range(6)]
    second = [world.submit([n] * 4, 6, user=1, end_user=2) for n in range(3)]
    world.run()
    check_closed(world)
    admitted = sorted((*first, *second), key=lambda request: request.admitted_s or 0.0)
    assert [request.end_user for request in admitted] == [1, 2, 1, 2, 1, 2, 1, 1, 1]


# --- prefixes first -------------------------------------------------------------------------

LEAST, AHEAD = 1, 2
# the user who was served least comes first, since a user who comes later would be lifted to it
WAITING = [asking(id, user, 100) for id, user in ((1, LEAST), (2, AHEAD), (3, LEAST))]
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
    assert order_of(order, WAITING, hits=HITS) == expected


def test_users_that_are_ahead_are_in_the_order_of_their_counters_whatever_is_cached() -> None:
    order = DLPM()
    serve(order, 2, int(QUANTUM) + 900)
    serve(order, 3, int(QUANTUM) + 400)
    waiting = [asking(id, id, 100) for id in (1, 2, 3)]
    assert order_of(order, waiting, hits={2: 80}) == [1, 3, 2]


def test_prefixes_are_compared_among_the_first_of_the_window() -> None:
    waiting = [asking(id, 1, 100) for id in range(WINDOW + 5)]
    inside, outside = {WINDOW - 1: 80}, {WINDOW: 80}
    for hits, first in ((inside, WINDOW - 1), (outside, 0)):
        (request,) = DLPM().first(view(waiting, hits=hits), 1)
        assert request.id == first


# --- the bound: theorem 4.4 of the paper ----------------------------------------------------

LONGEST_PROMPT, BUDGET = 20, 120


@examples(30)
@given(
    sizes=st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2]), st.integers(1, LONGEST_PROMPT), st.integers(1, 24)
        ),
        min_size=20,
        max_size=60,
    ),
    limit=st.integers(1, 8),
)
def test_the_service_of_two_backlogged_users_never_differs_by_more_than_the_bound(
    sizes: list[tuple[int, int, int]], limit: int
) -> None:
    """All requests are there from the start, so a user is backlogged until its last admission."""
    world = World(MODE, max_batch_size=limit, budget=BUDGET)
    for seed, (user, prompt, tokens) in enumerate(sizes):
        world.submit([seed % 13] * prompt, tokens, seed, user=user)
    bound = 2 * max(PROMPT_TOKEN * LONGEST_PROMPT, GENERATED_TOKEN * BUDGET)
    while all(
        any(i.user == user and i.admitted_s is None for i in world.submitted) for user in (1, 2)
    ):
        world.step()
        first, second = (
            sum(
                PROMPT_TOKEN * i.prompt_tokens + GENERATED_TOKEN * i.generated
                for i in world.submitted
                if i.user == user and i.admitted_s is not None
            )
            for user in (1, 2)
        )
        assert abs(first - second) <= bound
    world.run()
    check_closed(world)
