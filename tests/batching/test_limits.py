"""What the queue takes in, how long a request may take, and when a refused client is to return."""

from __future__ import annotations

import pytest

from engine.inference import OverloadedError
from engine.queue import RETRY_AFTER_S
from tests.batching.modes import MODES, Mode, every_mode_and_policy
from tests.batching.virtual import TICK_S, World, check_closed

NOBATCH, STATIC, *_ = MODES


@every_mode_and_policy
def test_prompts_beyond_the_queues_tokens_are_refused_and_the_knob_is_named(mode: Mode) -> None:
    world = World(mode, max_batch_size=1, max_waiting_prompt_tokens=10)
    world.submit([1] * 12, 3)  # longer than the limit, but nothing waits
    world.step()
    world.submit([1] * 7, 3)
    world.submit([1] * 3, 3)
    with pytest.raises(OverloadedError, match=r"prompts of 10 tokens.*--max-waiting-prompt-tokens"):
        world.submit([1], 3)
    world.run()
    world.submit([1], 3)
    world.run()
    check_closed(world)


@every_mode_and_policy
@pytest.mark.parametrize("phase", ["waiting", "running"])
def test_a_request_that_takes_too_long_ends_with_an_error_in_any_phase(
    mode: Mode, phase: str
) -> None:
    timeout_s = 10 * TICK_S
    world = World(mode, max_batch_size=1, request_timeout_s=timeout_s)
    first, late = world.submit([1], 60), world.submit([2], 60)
    world.run()
    check_closed(world)
    overdue = first if phase == "running" else late
    assert overdue.cause == "timeout"
    assert overdue.end == "failed"
    assert "--request-timeout" in (overdue.error or "")
    assert overdue.record is not None
    assert overdue.record.end_s >= timeout_s
    assert (overdue.generated > 0) == (phase == "running")


def test_a_request_is_ended_in_time_although_its_policy_waits_for_others() -> None:
    world = World(STATIC, max_wait_s=100.0, request_timeout_s=1.0)
    inference = world.submit([1], 5)
    world.run()
    check_closed(world)
    assert inference.cause == "timeout"
    assert inference.record is not None
    assert inference.record.end_s == 1.0


@every_mode_and_policy
def test_stored_requests_take_no_place_in_the_queue_and_are_never_refused_or_late(
    mode: Mode,
) -> None:
    world = World(
        mode,
        max_batch_size=1,
        max_waiting=2,
        max_waiting_prompt_tokens=8,
        request_timeout_s=20 * TICK_S,
    )
    stored = [world.submit([n] * 9, 30, stored=True) for n in range(6)]
    late = [world.submit([n] * 4, 90) for n in range(2)]
    with pytest.raises(OverloadedError, match=r"2 requests are waiting already"):
        world.submit([1], 1)
    world.step()
    stored.append(world.submit([1], 1, stored=True))
    world.run()
    check_closed(world)
    assert all(inference.end == "length" for inference in stored)
    assert all(inference.cause == "timeout" for inference in late)
    world.submit([1] * 7, 1)  # the counts are back at nothing
    world.submit([1], 1)
    world.run()
    check_closed(world)


@every_mode_and_policy
def test_a_request_that_is_done_in_time_is_left_alone(mode: Mode) -> None:
    world = World(mode, request_timeout_s=1.0)
    inferences = [world.submit([n], 5) for n in range(4)]
    world.run()
    check_closed(world)
    assert all(inference.end == "length" for inference in inferences)


def refused_retry_after_s(world: World) -> float:
    with pytest.raises(OverloadedError) as refused:
        world.submit([1], 1)
    return refused.value.retry_after_s


def test_a_refused_client_is_told_how_long_the_queue_takes_at_the_present_rate() -> None:
    world = World(NOBATCH, max_waiting=5)
    for iteration in range(6):  # an answer every two seconds
        for _ in range(iteration == 0 and 5):
            world.submit([1], 1)
        world.step()
        world.now_s = 2.0 * (iteration + 1)
        world.submit([1], 1)
    assert refused_retry_after_s(world) == pytest.approx(5 * 2.0, rel=0.01)


def test_without_a_rate_yet_a_refused_client_is_told_the_least() -> None:
    world = World(NOBATCH, max_waiting=2)
    for _ in range(2):
        world.submit([1], 50)
    assert refused_retry_after_s(world) == RETRY_AFTER_S[0]


def test_however_slow_the_server_nobody_is_told_to_wait_longer_than_clients_heed() -> None:
    world = World(NOBATCH, max_waiting=5)
    for iteration in range(3):
        while world.manager.counts["waiting"] < 5:
            world.submit([1], 1)
        world.step()
        world.now_s = 500.0 * (iteration + 1)
    world.submit([1], 1)
    assert refused_retry_after_s(world) == RETRY_AFTER_S[1]
