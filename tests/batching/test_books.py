"""What is counted and held when the manager is idle, shown on small examples."""

from __future__ import annotations

import logging

import pytest

from tests.batching.modes import Mode, every_mode
from tests.batching.virtual import TICK_S, World, check_closed


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
    world.step()
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
