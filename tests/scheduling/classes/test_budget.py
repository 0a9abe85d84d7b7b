"""Two classes of requests: what the wrappers around a policy plan, shown plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduling.classes.budget import (
    BLIND_TOKENS,
    BLIND_TOKENS_ALONE,
    QUIET_S,
    Budget,
)
from scheduling.classes.simple import Exclusive, NoneWaiting, Priority
from scheduling.contract import check_plan
from scheduling.policies.orca import Orca
from scheduling.prediction.step_time import Work
from seams import Plan, Policy, Request, View
from tests.batching.modes import POLICIES
from tests.scheduling.shown import Shown, advanced, batches, carried_out, decoding, queues, view
from tests.scheduling.step_times import FixedStepTime
from tests.support.hash_model import virtual_duration_s

FACTORS = st.sampled_from([1.0, 1.05, 1.15, 1.5, 2.0, 4.0])
every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())


@st.composite
def mixtures(draw: st.DrawFn) -> View:
    """Both classes, waiting and resident; residents hold all that they may come to need."""
    resident = [
        replace(
            r,
            room=r.prompt_tokens + r.max_tokens,
            computed=draw(st.integers(0, r.known - 1)),
            done=False,
        )
        for r in draw(batches(0, 6))
    ]
    waiting = draw(queues(8))
    all_requests = [
        replace(
            r,
            service_class=draw(st.sampled_from(["immediate", "deferred"])),
            deadline_s=draw(st.sampled_from([None, 1.0, 500.0])),
        )
        for r in (*waiting, *resident)
    ]
    used = sum(r.room for r in all_requests)
    assume(all_requests)
    return view(
        all_requests[: len(waiting)],
        all_requests[len(waiting) :],
        limit=draw(st.integers(max(1, len(resident)), 10)),
        budget=max(used, 60) + draw(st.integers(0, 100)),
        used=used,
    )


def of_class(requests: Sequence[Request], service_class: str) -> list[Request]:
    return [request for request in requests if request.service_class == service_class]


def without_deferred(shown: View) -> View:
    """As though there had never been any."""
    return view(
        of_class(shown.waiting, "immediate"),
        of_class(shown.resident, "immediate"),
        limit=shown.max_batch_size,
        budget=shown.memory.num_blocks,
        used=shown.memory.used - shown.memory.freed(of_class(shown.resident, "deferred")),
    )


@every_policy
@given(shown=mixtures(), factor=FACTORS)
def test_immediate_requests_get_the_plan_that_they_would_get_alone(
    make: Callable[[], Policy], shown: View, factor: float
) -> None:
    """At the cost of the deferred requests with the fewest computed tokens."""
    alone = without_deferred(shown)
    expected = make().plan(alone) if alone.waiting or alone.resident else Plan()
    for wrapped in (Budget(make(), FixedStepTime(), factor), Exclusive(make())):
        plan = wrapped.plan(shown)
        check_plan(plan, shown)
        assert wrapped.plan(shown) == plan  # which may be dropped
        mine = [step for step in plan.advance if step.request.service_class == "immediate"]
        assert mine == list(expected.advance)
        assert of_class(plan.preempt, "immediate") == list(expected.preempt)
        if isinstance(wrapped, Budget):
            gone = of_class(plan.preempt, "deferred")
            kept = [r.computed for r in of_class(shown.resident, "deferred") if r not in gone]
            assert max((r.computed for r in gone), default=0) <= min(kept, default=math.inf)
            assert not gone or any(not step.request.resident for step in mine)


deferred = partial(decoding, service_class="deferred")


def test_a_request_that_is_short_of_time_overtakes_running_ones_that_are_not() -> None:
    """A row gets a token in an iteration of 10 s; so 8 tokens take 80 s."""

    class Slow(FixedStepTime):
        def seconds(self, work: Work) -> float | None:
            return 10.0

    waiting = [
        Shown(id, 100.0, prompt_tokens=1, service_class="deferred", deadline_s=deadline_s)
        for id, deadline_s in ((5, 1000.0), (6, 150.0))
    ]
    begun = deferred(1, deadline_s=900.0)
    policy = Budget(Orca(), Slow(), max_step_s=100.0)
    shown = view(waiting, [begun], used=12)
    # no pace is known yet
    assert [s.request.id for s in carried_out(policy, shown).advance] == [1, 6, 5]
    assert [s.request.id for s in policy.plan(shown).advance] == [6, 1, 5]


def test_if_nothing_fits_the_minimum_grants_one_row_every_100_iterations() -> None:
    shown = view([], [decoding(0), deferred(1), deferred(2)], used=36)
    policy = Budget(Orca(), FixedStepTime(), factor=1.0)
    rows = [len(carried_out(policy, shown).advance) for _ in range(200)]
    assert rows == [*[1] * 99, 2] * 2


def test_without_predictions_a_few_tokens_join_and_more_without_immediate_requests() -> None:
    resident = [deferred(n) for n in range(1, 10)]
    blind = Budget(Orca(), FixedStepTime(known=False))
    shown = view([], [decoding(0), *resident], limit=20, used=120)
    assert len(blind.plan(shown).advance) == 1 + BLIND_TOKENS
    long = Shown(30, prompt_tokens=200, service_class="deferred")
    (step,) = blind.plan(view([long])).advance
    assert step.num_tokens == BLIND_TOKENS_ALONE


def test_the_wait_of_the_next_arrival_stays_within_the_factor_of_its_ttft() -> None:
    waiting = [Shown(n, service_class="deferred") for n in range(20)]
    shown = view(waiting, limit=30)

    def taken_s(ttft_s: float | None, max_step_s: float, quiet_s: float = 1.0) -> float:
        policy = Budget(Orca(), FixedStepTime(ttft_s), factor=1.25, max_step_s=max_step_s)
        carried_out(policy, view(waiting, [decoding(90)], now_s=shown.now_s - quiet_s))
        before = policy._remembered
        policy._remembered = before._replace(load=before.load._replace(residents=0.0))
        work = Work.of(policy.plan(shown).advance)
        return virtual_duration_s(work.num_rows, work.num_tokens)

    whole_s = virtual_duration_s(20, 80)
    assert taken_s(None, 1.0) == taken_s(1.0, 1.0) == whole_s
    assert taken_s(0.01, 1.0) <= 0.01 * 0.25 / 1.25 < whole_s
    assert taken_s(0.01, 1.0, quiet_s=1.5 * QUIET_S) == whole_s
    assert taken_s(None, 0.002) <= 0.002 < whole_s
    assert taken_s(None, 1e-6) <= 1.25 * virtual_duration_s(1, 1)


def test_slots_that_immediate_requests_used_recently_stay_free_for_a_while() -> None:
    present = [decoding(n) for n in range(3)]
    queue = [Shown(n, service_class="deferred") for n in range(10, 16)]
    policy = Budget(Orca(), FixedStepTime())
    carried_out(policy, view([], present, limit=6, used=36))
    again = policy.plan(view(queue, [], limit=6))
    assert len(again.advance) == 3
    for _ in range(1000):
        carried_out(policy, view(queue, [], limit=6))
    assert len(policy.plan(view(queue, [], limit=6)).advance) == 5


def test_the_simple_policies_do_what_they_are_called() -> None:
    queue = [Shown(1, service_class="deferred"), Shown(2), Shown(3, service_class="deferred")]
    both = view(queue, [decoding(0), deferred(9)], used=24, limit=9)

    def ids(policy: Policy, shown: View) -> list[int]:
        return [id for id, _ in advanced(policy.plan(shown))]

    assert ids(Priority(Orca()), both) == [0, 9, 2, 1, 3]
    assert ids(Exclusive(Orca()), both) == [0, 2]
    assert ids(NoneWaiting(Orca()), both) == [0, 9, 2]
    idle = view([queue[0], queue[2]], [deferred(9)], used=12, limit=9)
    assert ids(Exclusive(Orca()), idle) == [9, 1, 3] == ids(NoneWaiting(Orca()), idle)


def test_near_the_batch_limit_the_factor_is_what_the_places_hold() -> None:
    present, long = [decoding(n) for n in range(3)], deferred(9, prompt_tokens=900)
    alone_s = virtual_duration_s(3, 3)

    def taken_s(limit: int) -> float:
        shown = view([], [*present, replace(long, computed=0, room=950)], limit=limit, budget=2000)
        work = Work.of(Budget(Orca(), FixedStepTime(), factor=2.0).plan(shown).advance)
        return virtual_duration_s(work.num_rows, work.num_tokens)

    assert taken_s(4) <= alone_s * 4 / 3 < taken_s(100) <= alone_s * 2
