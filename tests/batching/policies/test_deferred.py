"""Both classes of requests in virtual time: what immediate requests lose to deferred ones, and what
these get. That all get their tokens is shown in `test_any_workload.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from scheduling.classes.budget import FLOOR_ITERATIONS, Budget
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Load, Predictor
from scheduling.prediction.step_time import Work
from seams import Plan, Policy, Served, ServiceClass, View
from tests.batching.modes import ADMISSIONS, MODES, POLICIES, Mode
from tests.batching.virtual import (
    TICK_S,
    Client,
    World,
    Wrapped,
    check_closed,
    moments,
    play,
    workloads,
)
from tests.examples import examples
from tests.scheduling.step_times import FixedStepTime
from tests.support.hash_model import virtual_duration_s

FACTORS = st.sampled_from([1.0, 1.05, 1.15, 1.5, 2.0])
SENDERS = workloads(
    service_class=st.sampled_from(["immediate", "deferred"]),
    deadline_s=st.none() | moments(400),
)


def of(policy: Policy) -> Mode:
    return replace(MODES[3], policy=lambda _: policy)


def lasts_s(work: Work) -> float:
    return virtual_duration_s(work.num_rows, work.num_tokens)


class Clocked(Wrapped):
    """Any policy, with the times of its iterations: as planned and as served, each with its
    immediate part. A prefix hit, which the plan does not count, leaves less to serve."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.iterations: list[tuple[float, Work, float, Work, bool]] = []

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(view)
        immediate = [step for step in plan.advance if step.request.service_class == "immediate"]
        self._planned = lasts_s(Work.of(plan.advance)), Work.of(immediate)
        self._mixed = view.num_deferred > 0
        return plan

    def observe(self, rows: Iterable[Served]) -> None:
        served = list(rows)
        super().observe(served)
        immediate = [row for row in served if row.request.service_class == "immediate"]
        both = lasts_s(Work.done(served)), Work.done(immediate)
        self.iterations.append((*self._planned, *both, self._mixed))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("ledger", ADMISSIONS.values(), ids=ADMISSIONS)
@examples(10, 200)
@given(
    senders=SENDERS,
    max_batch_size=st.integers(1, 8),
    budget=st.integers(44, 400),
    factor=FACTORS,
    max_step_ms=st.integers(1, 5),
)
def test_no_immediate_row_waits_for_a_deferred_one_beyond_the_budget(
    name: str,
    ledger: Callable[[int, int], Ledger],
    senders: list[Client],
    max_batch_size: int,
    budget: int,
    factor: float,
    max_step_ms: int,
) -> None:
    """Since rows are whole, one iteration may take what earlier ones left, up to a row. But for the
    floor, which is one row in so many iterations."""
    policy = Clocked(Budget(POLICIES[name](), FixedStepTime(), factor, max_step_ms / 1000))
    mode = replace(of(policy), ledger=ledger)
    world = World(mode, max_batch_size=max_batch_size, budget=budget)
    play(world, senders)
    check_closed(world)
    cap_s = max(max_step_ms / 1000, factor * virtual_duration_s(1, 1), virtual_duration_s(1, 16))
    row_s = virtual_duration_s(1, 1) - virtual_duration_s(0, 0)
    floors, ahead_s = 0, 0.0
    for planned_s, planned, served_s, served, mixed in policy.iterations:
        share_s = factor * lasts_s(planned.scaled(1 / factor))
        most_s = max(factor * lasts_s(planned), share_s + row_s)
        if not planned.num_tokens:
            floors += planned_s > cap_s * (1 + 1e-9)
        elif planned_s > most_s * (1 + 1e-9):
            floors += 1
        elif mixed:
            share_s = factor * lasts_s(served.scaled(1 / factor))
            spare_s = max(factor * lasts_s(served) - share_s, row_s)
            ahead_s = max(ahead_s + served_s - share_s, -spare_s)
            if ahead_s > 1e-9:
                floors += 1
                ahead_s -= row_s
            assert ahead_s <= 1e-9
    assert floors <= len(policy.iterations) / FLOOR_ITERATIONS


@examples(30, 60)
@given(senders=SENDERS, max_batch_size=st.integers(1, 8), factor=FACTORS)
def test_deadlines_that_deferred_requests_alone_meet_with_twice_the_slack_are_met(
    senders: list[Client], max_batch_size: int, factor: float
) -> None:
    """Earliest deadline first, deferred requests alone, as large a step as there are places: where
    it meets a deadline in half the time, and the time that immediate ones are present is left over
    twice, the deadline is met beside them."""

    class EarliestDeadline(Orca):
        def plan(self, view: View) -> Plan:
            due = sorted(view.waiting, key=lambda r: (r.arrival_s + (r.deadline_s or 1e9), r.id))
            return super().plan(replace(view, waiting=due))

    def served(policy: Policy, *classes: ServiceClass) -> tuple[World, list[Inference]]:
        world = World(of(policy), max_batch_size=max_batch_size)
        chosen = [replace(s, patience_s=None) for s in senders]
        found = play(world, [s for s in chosen if s.asks["service_class"] in classes])
        return world, [i for i in found if i.service_class == "deferred"]

    _, in_time = served(EarliestDeadline(), "deferred")
    present, _ = served(Orca(), "immediate")
    present_s = sum(end_s - start_s for start_s, end_s in present.books.busy_periods)
    _, ours = served(Budget(Orca(), FixedStepTime(), factor), "immediate", "deferred")
    for edf, inference in zip(in_time, ours, strict=True):
        assert edf.record is not None
        assert inference.record is not None
        took_s = edf.record.end_s - edf.record.arrival_s
        if edf.deadline_s is not None and 2 * (took_s + present_s) <= edf.deadline_s:
            assert inference.record.end_s - inference.record.arrival_s <= edf.deadline_s


@pytest.mark.parametrize("name", POLICIES)
def test_a_deferred_request_ends_although_immediate_ones_leave_no_room_in_any_iteration(
    name: str,
) -> None:
    world = World(of(Budget(POLICIES[name](), FixedStepTime(), 1.0)), max_batch_size=4)
    late = world.submit([1] * 20, 5, service_class="deferred", stored=True)
    visitors = [(n * 40 * TICK_S, partial(world.submit, [n % 12], 60)) for n in range(40)]
    world.run(visitors)
    check_closed(world)
    assert late.record is not None
    assert late.record.end_s <= 10 * FLOOR_ITERATIONS * virtual_duration_s(4, 40)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("requests", "blocks"), [(2, 12), (40, 128)])
def test_deferred_requests_that_outgrow_the_memory_together_all_end(
    requests: int, blocks: int, lookahead: int
) -> None:
    """All are paused, and none can grow until another is preempted."""
    mode = replace(of(Budget(Orca(), Predictor())), ledger=partial(Ledger, growth_tokens=64))
    sizes: dict[str, Any] = {"budget": 16 * blocks, "context": 192, "block_tokens": 16}
    world = World(mode, max_batch_size=40, lookahead=lookahead, **sizes)
    for seed in range(requests):
        world.submit([seed % 13] * 16, 150, seed, service_class="deferred", stored=True)
    world.run()
    check_closed(world)
    assert {inference.end for inference in world.submitted} == {"length"}
    assert any(record.num_preemptions for record in world.books.requests)


def test_the_first_deferred_request_puts_the_wrapper_on_which_knows_the_load_before_it() -> None:
    predictor = Predictor()
    world = World(MODES[3], also=predictor, with_deferred=lambda policy: Budget(policy, predictor))
    for _ in range(3):
        world.submit([1, 2], 4)
    world.step()
    assert world.manager.policy is world.policy
    world.submit([5], 3, service_class="deferred")
    world.submit([6], 3, service_class="deferred")
    world.step()
    budget: Any = world.manager.policy
    assert budget.inner is world.policy
    assert predictor.load == Load(0.0, 3, 3 * (2 + 4))
    assert budget._seen.load.residents == 3
    world.run()
    check_closed(world)
