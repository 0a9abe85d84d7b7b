"""What becomes of requests that leave, are put back or fail, in each phase of their life; that all
others get their tokens whatever happens is shown in `test_any_workload.py`."""

from __future__ import annotations

from typing import Literal

import pytest

from engine.failures import REGROW_S
from tests.batching.modes import MODES, Mode, every, every_mode
from tests.batching.virtual import World, check_closed

NOBATCH, STATIC, STATIC_OWN, DYNAMIC = MODES


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


def test_those_whom_a_shortage_put_back_keep_their_places_and_the_batch_grows_again() -> None:
    world = World(DYNAMIC, max_batch_size=4, budget=10_000, context=1024)
    inferences = [world.submit([n], 800) for n in range(6)]
    world.step()
    world.step()
    world.model.max_rows = 2
    world.step()  # too much for the memory there is now
    assert [inference.id for inference in world.manager.queue.waiting] == list(range(6))
    world.step()
    assert world.policy.planned[-1] == [0, 1]
    assert [inference.generated for inference in inferences] == [3, 3, 2, 2, 0, 0]
    assert [inference.num_preemptions for inference in inferences] == [1, 1, 1, 1, 0, 0]
    world.model.max_rows = None
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}
    rows = {record.start_s: record.batch_size for record in world.books.iterations[2:]}
    assert {rows for at_s, rows in rows.items() if at_s < REGROW_S} == {2}
    assert max(rows for at_s, rows in rows.items() if at_s < 3 * REGROW_S) == 4
