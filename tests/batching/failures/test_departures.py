"""What becomes of requests that leave, are put back or fail, in each phase of their life; that all
others get their tokens whatever happens is shown in `test_any_workload.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from engine.failures import REGROW_S
from scheduling.policies.orca import Orca
from seams import Advance, Plan, Policy, Request, View
from tests.batching.modes import DYNAMIC_MODES, MODES, Mode, every, every_mode
from tests.batching.virtual import World, check_closed

NOBATCH, STATIC, STATIC_OWN, DYNAMIC = MODES


def of(policy: Policy) -> Mode:
    return replace(DYNAMIC, policy=lambda _: policy)


def test_one_who_leaves_makes_room_for_the_next_in_the_same_iteration() -> None:
    world = World(DYNAMIC, max_batch_size=1)
    first, second, third = (world.submit([n], most) for n, most in ((1, 100), (2, 4), (3, 4)))
    world.step()
    world.manager.cancel(first)
    world.manager.cancel(second)
    world.step()
    assert (first.end, first.generated, third.generated) == ("cancelled", 1, 1)
    assert second.record is not None
    assert (second.record.end, second.record.admitted_s) == ("cancelled", None)
    world.run()
    check_closed(world)


@every([STATIC, STATIC_OWN])
@pytest.mark.parametrize("end", ["cancelled", "stop"])
def test_who_leaves_a_static_batch_keeps_a_row_to_its_end_where_also_found_stops_are_answered(
    mode: Mode, end: Literal["cancelled", "stop"]
) -> None:
    world = World(mode)
    leaver, stayer = world.submit([1], 100), world.submit([2], 6)
    world.step()
    left_s = world.now_s
    world.manager.cancel(leaver, end)
    world.run()
    check_closed(world)
    assert [record.batch_size for record in world.books.iterations] == [2] * 6
    assert (leaver.end, stayer.end) == (end, "length")
    assert leaver.record is not None
    assert stayer.record is not None
    waits = end == "stop" and mode is STATIC
    assert leaver.record.end_s == (stayer.record.end_s if waits else left_s)
    world.manager.cancel(world.submit([1], 100))
    world.manager.cancel(world.submit([2], 100))
    world.run()  # a batch that everybody left ends at once
    assert len(world.books.iterations) == 6


@every_mode
def test_a_failed_iteration_harms_nobody_outside_it(mode: Mode) -> None:
    world = World(mode, max_batch_size=2)
    inferences = [world.submit([n], 3) for n in range(1, 6)]
    world.model.fail_on = {1}
    world.run()
    check_closed(world)
    failed = [inference for inference in inferences if inference.end == "failed"]
    assert failed == inferences[: 1 if mode is NOBATCH else 2]


@pytest.mark.parametrize("late", [False, True])
def test_an_iteration_in_flight_behind_one_that_fails_counts_as_the_same_failure(
    late: bool,
) -> None:
    """What was delivered before it stays."""
    world = World(DYNAMIC, max_batch_size=2, lookahead=1)
    world.model.fail_on, world.model.fails_late = {3}, late
    first, second = world.submit([1], 8), world.submit([2], 8)
    third = world.submit([3], 8)  # waits for a place
    world.run()
    check_closed(world)
    assert [i.end for i in (first, second, third)] == ["failed", "failed", "length"]
    assert (first.generated, second.generated) == (2, 2)
    assert world.manager.failed_iterations == {"decode": 1}


def test_those_whom_a_shortage_put_back_keep_their_places_before_all_who_wait() -> None:
    world = World(DYNAMIC, max_batch_size=4)
    inferences = [world.submit([n], 8) for n in range(6)]
    world.step()
    world.step()
    world.model.max_rows = 2
    world.step()  # too much for the memory there is now
    world.step()
    decision = world.policy.decisions[-1]
    assert decision.resident == []
    assert decision.waiting == [inference.id for inference in inferences]
    assert decision.advance == [inference.id for inference in inferences[:2]]
    assert [inference.generated for inference in inferences] == [3, 3, 2, 2, 0, 0]
    assert [inference.num_preemptions for inference in inferences] == [1, 1, 1, 1, 0, 0]
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}


def test_the_batch_grows_again_within_seconds_of_a_shortage_that_passed() -> None:
    world = World(DYNAMIC, max_batch_size=4, budget=10_000, context=1024)
    inferences = [world.submit([n], 1000) for n in range(8)]
    world.model.max_rows = 2
    world.step()
    world.step()
    world.model.max_rows = None
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}
    rows = {record.start_s: record.batch_size for record in world.books.iterations}
    assert {rows for at_s, rows in rows.items() if at_s < REGROW_S} == {2}
    assert max(rows for at_s, rows in rows.items() if at_s < 3 * REGROW_S) == 4


class Late(Orca):
    """Lets places go only when all are done, and computes the last token of one that is done."""

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        return Plan([step for step in plan.advance if step.num_tokens])

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return resident if all(request.done for request in resident) else ()


def test_a_policy_that_advances_a_request_that_is_done_gets_no_token_out_of_it() -> None:
    world = World(of(Late()))
    short, long = world.submit([1], 2), world.submit([2], 6)
    world.run()
    check_closed(world)
    assert (short.generated, long.generated) == (2, 6)
    assert [record.num_tokens for record in world.books.iterations] == [2, 2, 2, 1, 1, 1]


class YoungestFirst(Orca):
    """The oldest resident is preempted for a younger waiting request."""

    def plan(self, view: View) -> Plan:
        if view.resident and view.waiting and view.waiting[0].id > view.resident[0].id:
            return Plan([Advance(r, r.known - r.computed) for r in view.waiting], view.resident)
        return super().plan(view)


def test_a_row_that_is_preempted_in_flight_still_receives_its_token() -> None:
    world = World(of(YoungestFirst()), max_batch_size=1, lookahead=1)
    first = world.submit([1, 2], 8)
    world.step()  # the first token is delivered, the second is in flight
    assert (len(first.ids), first.generated) == (3, 2)
    world.submit([3], 2)
    world.step()
    assert (len(first.ids), first.num_preemptions) == (4, 0)
    world.step()
    assert (len(first.ids), first.num_preemptions) == (4, 1)
    world.run()
    check_closed(world)


def test_if_memory_runs_short_the_first_to_arrive_stays() -> None:
    """Each grows until both do not fit; ids are given in the order of arrival."""
    (mode,) = [mode for mode in DYNAMIC_MODES if mode.name == "orca, optimistic"]
    world = World(mode, budget=44, context=40)
    first, late = world.submit([2], 30), world.submit([1], 30)
    world.run()
    check_closed(world)
    assert (first.num_preemptions, late.num_preemptions > 0) == (0, True)
