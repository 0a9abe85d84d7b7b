"""What the queue takes in, how long a request may take, when a refused client is to return, what is
counted as busy, and what a model keeps of requests."""

from __future__ import annotations

from typing import Any

import pytest

from engine.inference import DrainingError, OverloadedError, TooLongError
from engine.queue import RETRY_AFTER_S
from tests.batching.modes import MODES, Mode, every_mode, every_mode_and_policy
from tests.batching.virtual import TICK_S, World, check_closed

NOBATCH, STATIC, _, DYNAMIC = MODES


@every_mode_and_policy
def test_a_model_keeps_nothing_of_requests_that_have_ended(mode: Mode) -> None:
    """It learns of their ends with the next iteration, or else it would keep all for ever."""
    world = World(mode)
    for tokens in (1, 2, 5):
        world.submit([1, 2, 3], tokens)
    world.run()
    last = world.submit([1], 2)
    world.run()
    assert set(world.model._sequences) == {last.id}


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error", "why"),
    [
        (30, 31, TooLongError, r"prompt \(30 tokens\) and num_tokens \(31\)"),
        (30, 21, TooLongError, "needs 51 tokens of KV memory, the server has 50"),
        (0, 3, ValueError, "at least one prompt token"),
        (1, 0, ValueError, "at least one token to generate"),
    ],
)
def test_a_request_that_could_never_fit_or_is_none_is_refused(
    prompt: int, max_tokens: int, error: type[Exception], why: str
) -> None:
    world = World(DYNAMIC, budget=50, context=60)
    with pytest.raises(error, match=why):
        world.submit([1] * prompt, max_tokens)
    world.submit([1] * 30, 20)
    world.run()
    check_closed(world)


TOKENS = {"max_waiting_prompt_tokens": 10}
LATER = {"service_class": "deferred"}


@pytest.mark.parametrize(
    ("limits", "waiting", "refused", "why"),
    [
        ({"max_waiting": 2}, [{}, {}], {}, r"2 requests are waiting already \(--max-waiting\)"),
        # half of the queue is for immediate ones
        ({"max_waiting": 4}, [LATER, LATER], LATER, "2 deferred requests are waiting already"),
        # an empty queue accepts a longer prompt
        (TOKENS, [{"prompt": [1] * 12}], {}, r"prompts of 12 tokens.*--max-waiting-prompt-tokens"),
        (TOKENS, [{"prompt": [1] * 7}, {"prompt": [1] * 3}], {}, "prompts of 10 tokens"),
    ],
)
def test_a_full_queue_refuses_until_places_come_back(
    limits: dict[str, Any], waiting: list[dict[str, Any]], refused: dict[str, Any], why: str
) -> None:
    request = {"prompt": [1], "max_tokens": 3}
    world = World(DYNAMIC, max_batch_size=1, **limits)
    for _ in range(2):
        for one in waiting:
            world.submit(**{**request, **one})
        with pytest.raises(OverloadedError, match=why):
            world.submit(**{**request, **refused})
        world.run()
        check_closed(world)
    world.manager.drain()
    with pytest.raises(DrainingError, match="shutting down"):
        world.submit([3], 3)
    assert world.manager.unavailable is not None


@every_mode_and_policy
def test_a_request_that_takes_too_long_ends_with_an_error_in_any_phase(mode: Mode) -> None:
    timeout_s = 10 * TICK_S
    world = World(mode, max_batch_size=1, request_timeout_s=timeout_s)
    running, waiting = world.submit([1], 60), world.submit([2], 60)
    world.run()
    check_closed(world)
    for overdue in (running, waiting):
        assert (overdue.end, overdue.cause) == ("failed", "timeout")
        assert overdue.record is not None
        assert overdue.record.end_s >= timeout_s
    assert running.generated > 0 == waiting.generated


def test_a_request_is_ended_in_time_although_its_policy_waits_for_others() -> None:
    world = World(STATIC, max_wait_s=100.0, request_timeout_s=1.0)
    inference = world.submit([1], 5)
    world.run()
    check_closed(world)
    assert inference.cause == "timeout"
    assert inference.record is not None
    assert inference.record.end_s == 1.0


def test_stored_requests_take_no_place_in_the_queue_and_are_never_refused_or_late() -> None:
    world = World(DYNAMIC, max_batch_size=1, max_waiting=2, request_timeout_s=20 * TICK_S)
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


@pytest.mark.parametrize(
    ("interval_s", "told_s"),
    [(None, RETRY_AFTER_S[0]), (2.0, 5 * 2.0), (500.0, RETRY_AFTER_S[1])],
    ids=["no rate is known yet", "present rate", "no longer than clients heed"],
)
def test_a_refused_client_is_told_how_long_the_queue_takes(
    interval_s: float | None, told_s: float
) -> None:
    """`interval_s`: an answer in so many seconds."""
    world = World(NOBATCH, max_waiting=5)
    for _ in range(5):
        world.submit([1], 1)
    for iteration in range(0 if interval_s is None else 6):
        world.step()
        world.now_s = (interval_s or 0.0) * (iteration + 1)
        world.submit([1], 1)
    with pytest.raises(OverloadedError) as refused:
        world.submit([1], 1)
    assert refused.value.retry_after_s == pytest.approx(told_s, rel=0.01)


@every_mode
def test_busy_time_is_not_counted_twice_for_one_who_arrives_as_the_last_one_ends(
    mode: Mode,
) -> None:
    """Nor is anyone admitted before it arrived: one after the loop has read its clock."""
    world = World(mode)
    world.submit([1] * 10, 1, at_s=TICK_S / 4)
    world.step()  # ends at now_s
    world.submit([2], 1, at_s=world.now_s - TICK_S)
    world.run()
    check_closed(world)
    (_, first_end_s), (second_start_s, _) = world.books.busy_periods
    assert second_start_s == first_end_s
