"""What the queue takes in, how long a request may take, when a refused client is to return, and
what is counted as busy."""

from __future__ import annotations

import logging

import pytest

from batching import BatchingManager
from engine.blocks import Ledger
from engine.inference import DrainingError, Inference, OverloadedError, TooLongError
from engine.queue import RETRY_AFTER_S
from requested import Sampling
from scheduling.policies.orca import Orca
from tests.batching.modes import MODES, Mode, every_mode, every_mode_and_policy
from tests.batching.virtual import TICK_S, Books, World, check_closed
from tests.support.hash_model import HashModel

NOBATCH, STATIC, *_ = MODES


@every_mode
def test_a_request_that_could_never_fit_or_is_none_is_refused(mode: Mode) -> None:
    world = World(mode, budget=50, context=40)
    with pytest.raises(TooLongError, match=r"prompt \(30 tokens\) and num_tokens \(11\)"):
        world.submit([1] * 30, 11)
    world = World(mode, budget=50, context=60)
    with pytest.raises(TooLongError, match="needs 51 tokens of KV memory, the server has 50"):
        world.submit([1] * 30, 21)
    with pytest.raises(ValueError, match="at least one prompt token"):
        world.submit([], 3)
    with pytest.raises(ValueError, match="at least one token to generate"):
        world.submit([1], 0)
    world.submit([1] * 30, 20)
    world.run()
    check_closed(world)


@every_mode
def test_requests_while_the_server_stops_or_is_full_are_refused_and_dropped(mode: Mode) -> None:
    world = World(mode, max_batch_size=2, max_waiting=2)
    world.submit([1], 3)
    world.submit([2], 3)
    with pytest.raises(OverloadedError, match=r"2 requests are waiting already \(--max-waiting\)"):
        world.submit([3], 3)
    world.manager.drain()
    assert not world.manager.ready
    with pytest.raises(DrainingError, match="shutting down"):
        world.submit([3], 3)
    world.run()
    check_closed(world)


def test_deferred_requests_leave_half_of_the_queue_to_immediate_ones() -> None:
    world = World(STATIC, max_waiting=4)
    for n in range(2):
        world.submit([n], 3, service_class="deferred")
    with pytest.raises(OverloadedError, match="2 deferred requests are waiting already"):
        world.submit([3], 3, service_class="deferred")
    for n in range(2):
        world.submit([n], 3)
    world.run()
    world.submit([4], 3, service_class="deferred")  # places come back
    world.run()
    check_closed(world)


def test_nobody_is_taken_in_before_the_model_is_there_nor_refused_once_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, model = BatchingManager(Orca(), Books(), max_batch_size=1, max_waiting=1), HashModel()
    with pytest.raises(DrainingError, match="still being loaded"):
        manager.enqueue(Inference([1], 3, Sampling(), 0.0))
    accept = manager.queue.open

    def not_ready_yet(*limits: int) -> None:
        assert not manager.ready
        accept(*limits)

    monkeypatch.setattr(manager.queue, "open", not_ready_yet)
    manager.serve(model, Ledger(model.num_blocks))
    manager.enqueue(Inference([1], 3, Sampling(), 0.0))
    assert manager.ready


@every_mode
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
def test_a_request_that_takes_too_long_ends_with_an_error_in_any_phase(mode: Mode) -> None:
    timeout_s = 10 * TICK_S
    world = World(mode, max_batch_size=1, request_timeout_s=timeout_s)
    running, waiting = world.submit([1], 60), world.submit([2], 60)
    world.run()
    check_closed(world)
    for overdue in (running, waiting):
        assert (overdue.end, overdue.cause) == ("failed", "timeout")
        assert "--request-timeout" in (overdue.error or "")
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


@every_mode
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


# --- what is counted ------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize(
    ("failing", "max_rows"), [((), None), ((1,), None), ((2,), None), ((), 0)],
    ids=["none", "prefill", "decode", "out of memory"],
)  # fmt: skip
def test_memory_is_free_by_the_time_the_last_request_ends(
    mode: Mode, failing: tuple[int, ...], max_rows: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """`caplog` keeps what is logged, as collectors of errors do: a traceback kept is no excuse."""
    world = World(mode)
    world.model.fail_on, world.model.max_rows = failing, max_rows
    inference = world.submit([1, 2, 3], 5)
    world.run()
    check_closed(world)
    assert (inference.error == "out of memory: 1 rows, 0 fit") == (max_rows == 0)
    assert max_rows == 0 or bool(failing) == any(r.levelno == logging.ERROR for r in caplog.records)
    assert not any(r.levelno == logging.CRITICAL for r in caplog.records)


@every_mode
@pytest.mark.parametrize("leaves", [False, True])
def test_nobody_is_admitted_or_ends_before_it_arrived(mode: Mode, leaves: bool) -> None:
    """One arrives after the loop has read its clock, and before it takes arrivals in."""
    world = World(mode)
    inference = world.submit([1], 3, at_s=world.now_s + TICK_S / 4)
    if leaves:
        world.manager.cancel(inference)
    world.run()
    check_closed(world)


@every_mode
def test_busy_time_is_not_counted_twice_for_one_who_arrives_as_the_last_one_ends(
    mode: Mode,
) -> None:
    world = World(mode)
    world.submit([1] * 10, 1)
    world.step()  # ends at now_s
    world.submit([2], 1, at_s=world.now_s - TICK_S)
    world.run()
    check_closed(world)
    (_, first_end_s), (second_start_s, _) = world.books.busy_periods
    assert second_start_s == first_end_s
