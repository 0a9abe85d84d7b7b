"""What becomes of requests that leave, are put back or fail, or whose model is lost, and when the
loop ends; that all others get their tokens whatever happens is shown in `test_any_workload.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal, cast

import pytest

from batching import EngineFailedError
from engine.failures import FAILURES_IN_A_ROW, REGROW_S
from scheduling.policies.orca import Orca
from seams import Plan, Recorder, View
from tests.batching.modes import MODES, Mode, every, every_mode
from tests.batching.virtual import TICK_S, World, check_closed, drive

NOBATCH, STATIC, STATIC_OWN, DYNAMIC = MODES


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


# --- the end of the loop --------------------------------------------------------------------


def driven(world: World) -> None:
    drive(world.manager, world.mode.lay_out, lambda: world.now_s)


@pytest.mark.parametrize(
    ("prompts", "failing", "ends"),
    [
        (range(6), range(1, 100), True),
        ([7] * 30, range(1, 100), False),  # one request that fails however often it is sent
        (range(30), [n for n in range(1, 100) if n % FAILURES_IN_A_ROW], False),
    ],
)
def test_failures_in_a_row_of_different_requests_end_the_loop(
    prompts: Sequence[int], failing: Collection[int], ends: bool
) -> None:
    world = World(DYNAMIC, max_batch_size=1)
    world.model.fail_on = failing
    requests = [world.submit([prompt % 12], 1) for prompt in prompts]
    world.manager.drain()
    expected = pytest.raises(EngineFailedError, match="5 iterations in a row failed, the last with")
    with expected if ends else nullcontext():
        driven(world)
    failed = [i.end == "failed" for i in requests]
    assert failed == [n in failing for n in range(1, 1 + len(prompts))]
    assert [i.cause for i in requests if ends] == [*[None] * FAILURES_IN_A_ROW, "shutdown"][
        : 6 * ends
    ]


def test_a_policy_that_always_fails_ends_the_loop_too() -> None:
    class Broken(Orca):
        def plan(self, view: View) -> Plan:
            world.submit([len(world.submitted)], 1)  # a request always arrives
            raise ZeroDivisionError("a policy of one's own")

    world = World(replace(DYNAMIC, policy=lambda _: Broken()))
    world.submit([0], 1)
    with pytest.raises(EngineFailedError, match="a policy of one's own"):
        driven(world)


def test_a_recorder_that_fails_costs_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space is left")

    broken = SimpleNamespace(iteration=fail, request=fail, busy=fail)
    world = World(DYNAMIC, also=cast(Recorder, broken))
    world.submit([1], 3)
    world.run()
    check_closed(world)
    assert len(caplog.records) == 5  # three iterations, a request, and a busy time


# --- the model is lost ----------------------------------------------------------------------


def test_nobody_joins_a_suspect_before_its_first_token_and_that_clears_it() -> None:
    world = World(DYNAMIC)
    world.model.lose_on = {1, 2, 3, 6, 8, 10, 12}
    first, second = world.submit([0], 8), world.submit([1], 8)
    world.run()
    check_closed(world)
    assert first.end == second.end == "length"
    assert world.policy.planned[3:6] == [[first.id], [second.id], [second.id, first.id]]


def test_a_loss_between_iterations_is_no_requests_fault_and_the_batch_limit_outlives_it() -> None:
    world = World(DYNAMIC)
    world.model.max_rows = 2
    inferences = [world.submit([seed], 20, seed) for seed in range(8)]
    while world.manager._failures.batch_limit != 2:
        world.step()
    for _ in range(6):
        world.model.lose()
        world.step()
    world.step()
    assert world.manager._failures.batch_limit == 2
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}


@every_mode
def test_while_the_model_is_away_nobody_is_taken_in_and_timeouts_run_on(mode: Mode) -> None:
    world = World(mode, request_timeout_s=100 * TICK_S)
    inference = world.submit([1, 2], 50)
    world.step()
    assert not world.manager.recovers
    world.away("no answer for 5 s")
    assert world.manager.unavailable == "the model is lost: no answer for 5 s"
    assert world.manager.recovers
    assert world.step() == inference.arrival_s + 100 * TICK_S
    world.run()
    check_closed(world)
    assert inference.cause == "timeout"
    world.away(None)
    assert world.manager.unavailable is None
    world.away("gone")
    world.manager.queue.drain()
    assert not world.manager.recovers
