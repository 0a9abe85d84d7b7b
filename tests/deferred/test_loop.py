"""A loop waits as long as its turn says, unless it is woken or stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from deferred.loop import Loop

SOON_S = 60.0  # for what happens at once


class Hourly(Loop):
    """A turn an hour, if nothing wakes it."""

    def __init__(self) -> None:
        super().__init__(hurried=lambda: False)
        self.turns = threading.Semaphore(0)

    def turn(self) -> float:
        self.turns.release()
        return 3600.0


@contextmanager
def running(loop: Loop) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        loop.stop()
        thread.join(SOON_S)


def test_a_loop_that_is_woken_has_its_next_turn_at_once() -> None:
    loop = Hourly()
    with running(loop):
        assert loop.turns.acquire(timeout=SOON_S)
        loop.wake()
        assert loop.turns.acquire(timeout=SOON_S)


def test_a_loop_that_is_stopped_ends_its_wait() -> None:
    loop = Hourly()
    with running(loop) as thread:
        assert loop.turns.acquire(timeout=SOON_S)
    assert not thread.is_alive()
    assert not loop.turns.acquire(blocking=False)
