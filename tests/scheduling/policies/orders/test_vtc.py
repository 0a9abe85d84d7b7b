"""Fair orders: the virtual token counter, what is charged, what a user that comes back begins with;
and prefixes that decide among the users who are not too far ahead."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from scheduling.policies.orders.dlpm import DLPM, QUANTUM
from scheduling.policies.orders.vtc import GENERATED_TOKEN, PROMPT_TOKEN, VTC
from seams import Sampling, Served
from tests.batching.modes import DYNAMIC_MODES
from tests.batching.virtual import World, check_closed
from tests.examples import examples
from tests.scheduling.shown import Shown, order_of

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
    waiting, order = [asking(3, 2, 9), asking(4, 1), asking(5, 2)], VTC()
    for _ in range(2):  # what a plan has chosen counts in it alone
        assert order_of(order, waiting) == [3, 4, 5]


def test_a_user_that_comes_back_is_lifted_to_the_smallest_counter_of_those_who_wait() -> None:
    order = VTC()
    for user, tokens in ((1, 300), (2, 1000), (3, 20), (4, 700)):
        serve(order, user, tokens)
    busy = [asking(1, 1), asking(2, 2)]
    order_of(order, busy)
    order_of(order, [*busy, asking(3, 3), asking(4, 4)])
    assert order.served[3] == order.served[1] == 300.0
    assert order.served[4] == 700.0, "it had more already"


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
