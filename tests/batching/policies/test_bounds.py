"""The two guarantees of every policy: no request waits for ever, and decoding never stalls longer
than the policy says. The bounds are those of the docstrings in `scheduling/`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from scheduling.composed import Order
from scheduling.registry import IN_ORDER, JOINING, POLICIES
from tests.batching.modes import (
    DYNAMIC_MODES,
    MAX_BYPASS,
    MODES,
    PREFILL_TOKENS,
    TOKEN_BUDGET,
    Mode,
    every,
)
from tests.batching.virtual import Client, World, check_closed, play, workloads
from tests.examples import examples
from tests.scheduling.shown import signals

OPTIMISTIC_MODES = [mode for mode in DYNAMIC_MODES if "optimistic" in mode.name]
LONGEST_PROMPT, LONGEST = 20, 44  # of the workloads' requests

# given the batch limit and the longest prefill: after a preemption it holds generated tokens too
STALL_BOUNDS: dict[str, Callable[[int, int], int]] = {
    "orca": lambda limit, longest: (limit - 1) * longest,
    "tgi": lambda _, longest: max(PREFILL_TOKENS, longest),
    "stall-free": lambda *_: TOKEN_BUDGET - 1,
    "shortest-first": lambda limit, longest: (limit - 1) * longest,
    **dict.fromkeys(JOINING, lambda *_: TOKEN_BUDGET - 1),
}
MOST_OVERTAKING: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("nobatch", "static", *IN_ORDER), lambda _: 0),
    "shortest-first": lambda limit: MAX_BYPASS + limit - 1,
}
UNPROMISED = {"hrrn", "deadline", "srpt"}  # who waits for ever if short requests never cease


def modes_of(policies: Iterable[str]) -> pytest.MarkDecorator:
    return every([m for m in (*MODES[:3], *DYNAMIC_MODES) if m.name.split(",")[0] in policies])


@modes_of(STALL_BOUNDS)
@examples(12, 80)
@given(workload=workloads(), limit=st.integers(2, 8), budget=st.integers(44, 200))
def test_decoding_stalls_no_longer_than_the_policy_says(
    mode: Mode, workload: list[Client], limit: int, budget: int
) -> None:
    world = World(mode, max_batch_size=limit, budget=budget, context=LONGEST)
    play(world, workload)
    check_closed(world)
    longest = LONGEST_PROMPT if "reserve" in mode.name else LONGEST
    bound = STALL_BOUNDS[mode.name.split(",")[0]](limit, longest)
    assert world.policy.worst_stall_tokens <= bound


def overtaken_by(inference: Inference, world: World) -> int:
    """Later arrivals that were admitted before it."""
    assert inference.record is not None
    at_s = inference.record.end_s if inference.admitted_s is None else inference.admitted_s
    admitted_s = [i.admitted_s for i in world.submitted if i.id > inference.id]
    return sum(other_s is not None and other_s < at_s for other_s in admitted_s)


@modes_of(MOST_OVERTAKING)
@examples(12, 80)
@given(
    workload=workloads(choices=3),
    limit=st.integers(1, 4),
    budget=st.integers(44, 100),
    max_rows=st.none() | st.integers(1, 4),
)
def test_a_request_is_overtaken_by_no_more_than_the_policy_says(
    mode: Mode, workload: list[Client], limit: int, budget: int, max_rows: int | None
) -> None:
    """Where memory grows with its use, choices that wait for the first of them may be passed."""
    if "optimistic" in mode.name:
        workload = [replace(client, choices=1) for client in workload]
    world = World(mode, max_batch_size=limit, budget=budget)
    world.model.max_rows = max_rows
    play(world, workload)
    most = MOST_OVERTAKING[mode.name.split(",")[0]](limit)
    assert max(overtaken_by(inference, world) for inference in world.submitted) <= most


@every(OPTIMISTIC_MODES)
@examples(12, 80)
@given(workload=workloads(), limit=st.integers(3, 8), budget=st.integers(44, 80))
def test_those_who_were_preempted_are_shown_first_and_in_order_of_arrival(
    mode: Mode, workload: list[Client], limit: int, budget: int
) -> None:
    world = World(mode, max_batch_size=limit, budget=budget)
    play(world, workload)
    preempted: set[int] = set()
    before: set[int] = set()
    for decision in world.policy.decisions:
        preempted |= before & set(decision.waiting)
        here = [id for id in decision.waiting if id in preempted]
        assert decision.waiting[: len(here)] == sorted(here)
        # a planned newcomer may not have fitted after growth: it was never admitted
        before = set(decision.resident)


def amid(
    world: World,
    request: Inference,
    arrive: Callable[[int], object],
    is_done: Callable[[Inference], object] = lambda request: request.ended,
) -> None:
    """Others arrive at every iteration until the request is done, which must not take for ever."""
    for number in range(2000):
        world.step()
        if is_done(request):
            break
        arrive(number)
    assert is_done(request)
    world.run()
    check_closed(world)
    assert request.end == "length"


def every_fourth_by_arrival(world: World) -> None:
    """Where a policy lets the oldest run every so many iterations."""
    order: Order | None = getattr(world.policy.policy, "order", None)
    if order is not None and order.oldest_every is not None:
        order.oldest_every = 4


@modes_of(POLICIES.keys() - UNPROMISED)
@examples(4, 60)
@given(
    own=signals(),
    others=st.lists(signals(), min_size=1, max_size=6),
    earlier=st.integers(0, 4),
)
def test_nobody_waits_for_ever_whatever_the_others_tell_the_policy(
    mode: Mode, own: dict[str, Any], others: list[dict[str, Any]], earlier: int
) -> None:
    """A long request, and two short ones at every iteration, between few users and programs."""
    if mode.name.split(",")[0] in ("dlpm", "priority"):  # they promise it where all are alike
        own, others, earlier = {}, [{}], 0
    world = World(mode, max_batch_size=2, budget=60)
    every_fourth_by_arrival(world)
    told = itertools.cycle(others)
    for _ in range(earlier):
        world.submit([1], 2, **own)
    for _ in range(4):
        world.submit([1], 2, **next(told))
    long = world.submit([2] * 20, 24, **own)

    def arrive(_: int) -> None:
        world.submit([3], 1, **next(told))
        world.submit([4], 2, **next(told))

    amid(world, long, arrive, lambda long: long.admitted_s is not None)


@modes_of(["mlfq", "program"])
@pytest.mark.parametrize(("prompt", "max_tokens", "budget"), [(90, 30, 300), (60, 36, 100)])
def test_a_request_that_had_its_share_or_needs_all_memory_continues_amid_new_ones(
    mode: Mode, prompt: int, max_tokens: int, budget: int
) -> None:
    world = World(mode, max_batch_size=2, budget=budget)
    every_fourth_by_arrival(world)
    for n in range(4):
        world.submit([n] * 4, 12)
    long = world.submit([2] * prompt, max_tokens, program=1)

    def arrive(number: int) -> None:
        while world.manager.queue.size < 3:
            world.submit([number % 13] * 4, 3)

    amid(world, long, arrive)
    assert any(record.generated < 4 for record in world.books.requests)


@every(OPTIMISTIC_MODES)
def test_one_who_is_preempted_again_and_again_still_ends(mode: Mode) -> None:
    """Long prompts keep arriving while a short one decodes: it always has the fewest computed
    tokens, and is the victim until it is the oldest."""
    world = World(mode, max_batch_size=3, budget=80)
    old = world.submit([1] * 30, 20)
    victim = world.submit([2], 24)
    for seed in range(40):
        world.submit([3] * 18, 20, seed)
        world.step()
    world.run()
    check_closed(world)
    assert old.end == victim.end == "length"
    assert sum(record.num_preemptions for record in world.books.requests) > 0
