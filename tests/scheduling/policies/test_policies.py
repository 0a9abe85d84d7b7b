"""What each policy decides, shown one view; how decisions add up is shown in tests/batching."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from scheduling import registry
from scheduling.contract import check_plan
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from scheduling.policies.tgi import TGI
from scheduling.registry import make_policy
from seams import Plan, Policy, Sampling
from serving.config import Config
from tests.examples import examples
from tests.scheduling.shown import (
    Shown,
    advanced,
    batches,
    carried_out,
    decoding,
    queues,
    signals,
    view,
)
from tests.scheduling.step_times import FixedStepTime

CONFIG = Config(mode="dynamic", max_batch_size=8, token_budget=12, max_bypass=3)
# the other modes, limits that matter, and all that a server can be asked for
POLICIES: dict[str, Callable[[], Policy]] = {
    "nobatch": NoBatch,
    "static, batch": lambda: Static(2.0, "batch"),
    "static, own": lambda: Static(2.0, "own"),
    "tgi, small": lambda: TGI(max_batch_prefill_tokens=40, max_batch_total_tokens=150),
    "stall-free, auto": StallFree,
    **{name: partial(make_policy, name, CONFIG, FixedStepTime()) for name in registry.POLICIES},
}
every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
@examples(60)
@given(
    waiting=queues(told=signals()),
    resident=batches(least=0, told=signals()),
    limit=st.integers(1, 8),
    budget=st.integers(60, 400),
    past=st.integers(0, 12),
)
def test_every_plan_keeps_the_contract_changes_nothing_and_is_the_same_for_the_same_past(
    name: str, waiting: list[Shown], resident: list[Shown], limit: int, budget: int, past: int
) -> None:
    policy = POLICIES[name]()
    if waiting[:past]:
        carried_out(policy, view(waiting[:past], limit=limit, budget=budget))
    pausing = name in registry.PAUSING
    resident = resident[:1] if isinstance(policy, NoBatch) else resident
    resident = resident if pausing else resident[:limit]
    if isinstance(policy, Static) and all(request.done for request in resident):
        resident = []  # the batch has ended
    if not isinstance(policy, Static):
        resident = [request for request in resident if not request.done]  # they were retired
    if not (waiting or resident):
        return
    most = max(limit, len(resident)) + 2 if pausing else None
    shown = view(waiting, resident, limit=limit, max_resident=most, budget=budget)
    before = copy.deepcopy(shown.waiting), copy.deepcopy(shown.resident)
    twin = copy.deepcopy(policy)
    plan = policy.plan(shown)
    check_plan(plan, shown)
    assert (shown.waiting, shown.resident) == before
    assert twin.plan(shown) == plan == policy.plan(shown)  # a plan may be dropped


class Counted(list[Inference]):
    looks = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[Inference]:
        return map(self.__getitem__, range(len(self)))


@pytest.mark.parametrize("name", registry.POLICIES)
def test_a_plan_looks_at_what_waits_twice_at_most_and_in_order_of_arrival_at_the_first(
    name: str,
) -> None:
    waiting, many = Counted(), 10_000
    policy = make_policy(name, CONFIG, FixedStepTime())
    for turn in range(2):
        for id in range(many * turn, many + 8 * turn):
            waiting.append(made := Inference([1] * (id % 30 + 1), 9, Sampling(), float(id)))
            made.id, made.user, made.program, made.priority = id, id % 50, id % 40, id % 6
        waiting = Counted(request for request in waiting if not request.done)
        shown = replace(view(limit=8, max_resident=32, budget=10_000), waiting=waiting)
        for step in policy.plan(shown).advance:  # they run at once, and end
            step.request.finish("length")  # type: ignore[attr-defined]
    assert waiting.looks <= (16 if name in registry.IN_ORDER else 2 * len(waiting))


def test_static_waits_for_its_window_unless_the_batch_is_full() -> None:
    waiting = [Shown(1, arrival_s=10.0), Shown(2, arrival_s=11.0)]
    policy = Static(max_wait_s=5.0)
    assert policy.plan(view(waiting, now_s=11.0, limit=4)) == Plan(wake_s=15.0)
    assert advanced(policy.plan(view(waiting, now_s=15.0, limit=4))) == [(1, 4), (2, 4)]
    assert advanced(policy.plan(view(waiting, now_s=11.0, limit=2))) == [(1, 4), (2, 4)]
    assert advanced(policy.plan(view(waiting, now_s=11.0, limit=1))) == [(1, 4)]


@given(waiting=queues(), limit=st.integers(1, 8), budget=st.integers(60, 400))
def test_static_takes_as_many_as_fit_into_one_padded_rectangle(
    waiting: list[Shown], limit: int, budget: int
) -> None:
    shown = view(waiting, now_s=1000.0, limit=limit, budget=budget, rectangles=True)
    size = len(Static(0.0).plan(shown).advance)
    assert size >= min(1, len(waiting))
    sizes_that_fit = [
        n
        for n in range(1, min(limit, len(waiting)) + 1)
        if n * (max(r.known for r in waiting[:n]) + max(r.max_tokens for r in waiting[:n]))
        <= budget
    ]
    assert size == max(sizes_that_fit, default=0)


def test_tgi_interrupts_for_the_ratio_to_running_requests_or_after_so_many_tokens() -> None:
    policy = TGI(waiting_served_ratio=0.5, max_waiting_tokens=3)
    running, waiting = [decoding(n) for n in (1, 2, 3, 4)], [Shown(9)]
    # the prefill is the first of three
    carried_out(policy, view([Shown(n) for n in (1, 2, 3, 4)]))
    for _ in range(2):
        decodes = carried_out(policy, view(waiting, running, limit=8))
        assert advanced(decodes) == [(n, 1) for n in range(1, 5)]
    assert advanced(carried_out(policy, view(waiting, running, limit=8))) == [(9, 4)]
    carried_out(policy, view([], running, limit=8))
    enough = [Shown(9), Shown(10)]
    assert advanced(policy.plan(view(enough, running, limit=8))) == [(9, 4), (10, 4)]


@given(waiting=queues(), prefill=st.integers(1, 60), total=st.integers(1, 200))
def test_tgi_takes_in_order_what_its_limits_allow_and_one_that_exceeds_them_alone(
    waiting: list[Shown], prefill: int, total: int
) -> None:
    if not waiting:
        return
    shown = view(waiting, limit=6)
    batch = [step.request for step in TGI(prefill, total).plan(shown).advance]
    assert batch == waiting[: len(batch)]
    assert batch
    if len(batch) > 1:
        assert sum(request.known for request in batch) <= prefill
        assert sum(request.most for request in waiting[: len(batch)]) <= total
    if len(batch) < min(6, len(waiting)):
        more = waiting[: len(batch) + 1]
        cost = sum(request.most for request in more)
        assert sum(request.known for request in more) > prefill or cost > total


def test_shortest_first_admits_by_tokens_left_and_what_has_waited_long_enough_before_all() -> None:
    policy = ShortestFirst(max_bypass=2)
    long = Shown(1, max_tokens=100)
    for n in (2, 3):
        plan = carried_out(policy, view([long, Shown(n, max_tokens=n)], limit=1))
        assert advanced(plan) == [(n, 4)]
    for n in (4, 5):  # it keeps its age where growth needed the memory
        assert advanced(policy.plan(view([long, Shown(n, max_tokens=1)], limit=1))) == [(1, 4)]
    nearly_done = Shown(5, max_tokens=50, generated=45)
    plan = ShortestFirst().plan(view([Shown(1, max_tokens=10), nearly_done], limit=1))
    assert advanced(plan) == [(5, 49)]
