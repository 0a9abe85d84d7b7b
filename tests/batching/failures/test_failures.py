"""A lost model is a preemption of everyone, and a lost device the end; iterations that fail one
after the other end the loop, too, unless a single request is their cause."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from batching import EngineFailedError
from engine.failures import FAILURES_IN_A_ROW
from engine.inference import DrainingError, Inference
from scheduling.policies.orca import Orca
from seams import Plan, View
from tests.batching.modes import MODES, Mode, every_mode
from tests.batching.virtual import TICK_S, World, check_closed, drive

DYNAMIC = MODES[3]


def driven(world: World) -> None:
    drive(world.manager, world.mode.lay_out, lambda: world.now_s)


def test_a_lost_device_fails_everyone_at_once_and_nothing_more_is_taken_in() -> None:
    world = World(DYNAMIC, max_batch_size=2)
    world.model.lost_from = 2
    requests = [world.submit([n], 5) for n in range(4)]
    with pytest.raises(EngineFailedError, match="the device is lost: an assertion"):
        driven(world)
    assert all("an assertion failed" in (i.error or "") and i.event.is_set() for i in requests)
    # of those that were in the iteration one may be the cause; the others may try elsewhere
    assert [i.cause for i in requests] == [None, None, "shutdown", "shutdown"]
    assert not world.manager.ready
    assert "the device is lost" in (world.manager.unavailable or "")
    with pytest.raises(DrainingError):
        world.submit([9], 1)
    assert (world.model.iterations, world.memory.used) == (2, 0)


def test_failures_in_a_row_of_different_requests_end_the_loop() -> None:
    world = World(DYNAMIC, max_batch_size=1)
    world.model.fail_on = range(1, 100)
    requests = [world.submit([n], 1) for n in range(FAILURES_IN_A_ROW + 1)]
    with pytest.raises(EngineFailedError, match="5 iterations in a row failed, the last with"):
        driven(world)
    assert [i.cause for i in requests] == [None] * FAILURES_IN_A_ROW + ["shutdown"]


def test_a_policy_that_always_fails_ends_the_loop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(DYNAMIC)

    def broken(policy: Orca, view: View) -> Plan:
        world.submit([len(world.submitted)], 1)  # a request always arrives
        raise ZeroDivisionError("a policy of one's own")

    monkeypatch.setattr(Orca, "plan", broken)
    world.submit([0], 1)
    with pytest.raises(EngineFailedError, match="a policy of one's own"):
        driven(world)


def one_request_again_and_again(number: int) -> tuple[int, bool]:
    return 7, True


def a_success_in_between(number: int) -> tuple[int, bool]:
    return number % 12, number % FAILURES_IN_A_ROW != 0


@pytest.mark.parametrize("course", [one_request_again_and_again, a_success_in_between])
def test_the_loop_survives(course: Callable[[int], tuple[int, bool]]) -> None:
    """One request that fails however often it is sent, and failures with successes between."""
    courses = [course(number) for number in range(1, 6 * FAILURES_IN_A_ROW)]
    world = World(DYNAMIC, max_batch_size=1)
    world.model.fail_on = {n for n, (_, fails) in enumerate(courses, start=1) if fails}
    requests = [world.submit([prompt], 1) for prompt, _ in courses]
    world.manager.drain()
    driven(world)
    assert [i.end == "failed" for i in requests] == [fails for _, fails in courses]
    assert world.manager.unavailable == "the server is shutting down"


# --- the model is lost ----------------------------------------------------------------------


def lost_in(iterations: set[int], *max_tokens: int) -> tuple[World, list[Inference]]:
    world = World(DYNAMIC)
    world.model.lose_on = iterations
    inferences = [world.submit([n], most) for n, most in enumerate(max_tokens)]
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}
    return world, inferences


def test_nobody_joins_a_suspect_before_its_first_token() -> None:
    world, (first, second) = lost_in({1, 2, 3}, 4, 4)
    alone = [decision.advance for decision in world.policy.decisions[3:5]]
    assert alone == [[first.id], [second.id]]
    assert world.policy.decisions[5].advance == [second.id, first.id]


def test_a_token_in_between_clears_a_request() -> None:
    lost_in({1, 2, 4, 6, 8, 10}, 8)  # every second iteration gives a token


def test_a_loss_between_iterations_is_no_requests_fault_and_the_batch_limit_outlives_it() -> None:
    world = World(DYNAMIC)
    world.model.max_rows = 2
    inferences = [world.submit([seed], 20, seed) for seed in range(8)]
    while world.policy.decisions[-1:] == [] or world.policy.decisions[-1].limit != 2:
        world.step()
    for _ in range(6):
        world.model.lose()
        world.step()
    world.step()
    assert world.policy.decisions[-1].limit == 2
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
    assert world.manager.ready
    world.away("gone")
    world.manager.queue.drain()
    assert not world.manager.recovers


def test_a_loop_that_waits_for_its_model_goes_on_when_it_is_back() -> None:
    world = World(DYNAMIC)
    world.model.lost = "gone"
    waits = threading.Event()

    def clock() -> float:
        waits.set()
        return 0.0

    inference = world.submit([1, 2], 5)
    thread = threading.Thread(target=drive, args=(world.manager, world.mode.lay_out, clock))
    thread.start()
    waits.wait()
    world.away(None)
    assert inference.event.wait(60.0)
    world.manager.drain()
    thread.join(60.0)
    assert inference.end == "length"
