"""Plans may be dropped: what a policy counts, it counts in `observe`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from scheduling.registry import POLICIES, make_policy, options_of, with_deferred
from seams import Plan, Policy, Served, View
from serving.config import Config
from telemetry.stats import Recorders
from tests.batching.modes import MAX_BYPASS, MODES, PREFILL_TOKENS, TOKEN_BUDGET
from tests.batching.virtual import Client, World, Wrapped, check_closed, moments, play, workloads
from tests.examples import examples
from tests.scheduling.shown import signals


class Doubtful(Wrapped):
    """Any policy; all plans but the last are dropped."""

    def __init__(self, policy: Policy, times: int) -> None:
        super().__init__(policy)
        self.times = times

    def plan(self, view: View) -> Plan:
        plans = [self.policy.plan(view) for _ in range(self.times)]
        assert all(plan == plans[0] for plan in plans)
        return plans[-1]


@pytest.mark.parametrize("name", POLICIES)
@examples(12)
@given(
    deferred_policy=st.sampled_from(["budget", "fifo", "priority", "exclusive"]),
    workload=workloads(
        told=signals(),
        service_class=st.sampled_from(["immediate", "deferred"]),
        deadline_s=moments(50),
    ),
    limits=st.fixed_dictionaries(
        {
            "max_batch_size": st.integers(1, 8),
            "budget": st.integers(44, 200),
            "lookahead": st.sampled_from([0, 1]),
        }
    ),
    growth_tokens=st.sampled_from([None, 3]),
)
def test_dropped_plans_change_no_later_one(
    name: str,
    deferred_policy: Any,
    workload: list[Client],
    limits: dict[str, Any],
    growth_tokens: int | None,
) -> None:
    config = Config(
        mode="dynamic",
        policy=name,
        deferred_policy=deferred_policy,
        max_batch_size=8,
        max_batch_prefill_tokens=PREFILL_TOKENS,
        max_waiting_tokens=4,
        token_budget=TOKEN_BUDGET,
        max_bypass=MAX_BYPASS,
        deferred_max_step_ms=3.0,
    )

    def books(times: int) -> object:
        predictor = Predictor()
        options = options_of(with_deferred, config)
        policy = with_deferred(make_policy(name, config), predictor, **options)
        doubtful = Doubtful(policy, times)
        ledger = partial(Ledger, growth_tokens=growth_tokens)
        world = World(replace(MODES[3], policy=lambda _: doubtful, ledger=ledger), **limits)
        world.manager.recorder = Recorders(world.books, predictor)
        play(world, workload)
        check_closed(world)
        return world.books

    assert books(3) == books(1)


def test_observed_are_the_tokens_of_the_records_and_of_failed_iterations_none() -> None:
    class Counting(Orca):
        def __init__(self) -> None:
            self.rows: list[Served] = []
            self.ended = 0

        def observe(self, rows: Iterable[Served]) -> None:
            self.rows += rows
            self.ended += sum(row.request.done for row in rows)

    policy = Counting()
    world = World(replace(MODES[3], policy=lambda _: policy), max_batch_size=2)
    world.model.fail_on = {3}
    first = world.submit([1, 2, 3], 4)
    world.submit([5, 6], 9, end_ids=range(13))
    world.submit([4], 9)
    late = world.submit([7], 6)
    world.run()
    check_closed(world)
    computed = sum(record.num_tokens for record in world.books.iterations)
    assert sum(row.computed for row in policy.rows) == computed
    for inference in world.submitted:
        mine = [row.generated for row in policy.rows if row.request is inference]
        assert sum(mine) == inference.generated
    assert (first.end, late.end) == ("failed", "length")
    assert policy.ended == 2  # by a stop token, and by its length
