"""The two guarantees of every policy: no request waits for ever, and decoding never stalls longer
than the policy says. The bounds are those of the docstrings in `scheduling/`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from scheduling.composed import Order
from scheduling.registry import IN_ORDER, JOINING, POLICIES
from seams import Plan, View
from tests.batching.modes import (
    DYNAMIC_MODES,
    MAX_BYPASS,
    MODES,
    PREFILL_TOKENS,
    TOKEN_BUDGET,
    Mode,
    every,
)
from tests.batching.virtual import Client, World, Wrapped, check_closed, play, workloads
from tests.examples import examples
from tests.scheduling.shown import signals

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


class Watched(Wrapped):
    """Any policy. `worst_stall`: prefill tokens between two decodes of one resident."""

    worst_stall = 0
    stalls: Mapping[int, int] = {}  # decoding resident -> prefill since its last token

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        decoding = {r.id for r in view.resident if r.generated and r.known - r.computed == 1}
        prefill = 0
        for request, num_tokens in plan.advance:
            if request.id not in decoding:  # a prefix hit is not computed
                hit_tokens = 0 if request.resident else view.memory.hit_tokens(request)
                prefill += min(num_tokens, request.known - request.computed - hit_tokens)
        stalls = {id: self.stalls.get(id, 0) + prefill for id in decoding}
        self.worst_stall = max(self.worst_stall, *stalls.values(), 0)
        self.stalls = {id: stall for id, stall in stalls.items() if id not in self.planned[-1]}
        return plan


def overtaken_by(inference: Inference, world: World) -> int:
    """Later arrivals that were admitted before it."""
    assert inference.record is not None
    at_s = inference.record.end_s if inference.admitted_s is None else inference.admitted_s
    admitted_s = [i.admitted_s for i in world.submitted if i.id > inference.id]
    return sum(other_s is not None and other_s < at_s for other_s in admitted_s)


@modes_of({*STALL_BOUNDS, *MOST_OVERTAKING})
@examples(12, 80)
@given(
    workload=workloads(choices=3),
    limit=st.integers(1, 8),
    budget=st.integers(44, 200),
    max_rows=st.none() | st.integers(1, 4),
)
def test_decoding_stalls_and_requests_are_overtaken_no_more_than_the_policy_says(
    mode: Mode, workload: list[Client], limit: int, budget: int, max_rows: int | None
) -> None:
    """Where memory grows with its use, choices that wait for the first of them may be passed."""
    if "optimistic" in mode.name:
        workload = [replace(client, choices=1) for client in workload]
    watched, name = Watched(mode.policy(0.0)), mode.name.split(",")[0]
    world = World(
        replace(mode, policy=lambda _: watched),
        max_batch_size=limit,
        budget=budget,
        context=LONGEST,
    )
    world.model.max_rows = max_rows
    play(world, workload)
    check_closed(world)
    if name in STALL_BOUNDS and max_rows is None:
        longest = LONGEST_PROMPT if "reserve" in mode.name else LONGEST
        assert watched.worst_stall <= STALL_BOUNDS[name](limit, longest)
    if name in MOST_OVERTAKING:
        most = MOST_OVERTAKING[name](limit)
        assert max(overtaken_by(inference, world) for inference in world.submitted) <= most


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
    """A long request, which needs most of the memory, and two short ones at every iteration,
    between few users and programs."""
    if mode.name.split(",")[0] in ("dlpm", "priority"):  # they promise it where all are alike
        own, others, earlier = {}, [{}], 0
    world = World(mode, max_batch_size=2, budget=60)
    order: Order | None = getattr(world.policy.policy, "order", None)
    if order is not None and order.oldest_every is not None:
        order.oldest_every = 4  # iterations, of which one goes by arrival
    told = itertools.cycle(others)
    for _ in range(earlier):
        world.submit([1], 2, **own)
    for _ in range(4):
        world.submit([1], 2, **next(told))
    long = world.submit([2] * 20, 24, **own)
    for _ in range(2000):
        world.step()
        if long.end is not None:
            break
        world.submit([3], 1, **next(told))
        world.submit([4], 2, **next(told))
    assert long.end is not None
    world.run()
    check_closed(world)
    assert long.end == "length"
