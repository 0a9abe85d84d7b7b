"""The loop in a thread of its own, as the server runs it: it survives what goes wrong, sleeps and
wakes, and no request waits for ever. Real time, but no test depends on how much of it passes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from batching import LOOPS
from engine.inference import RefusedError
from generate.modes import ModeName
from scheduling.policies.orca import Orca
from seams import Advance, Plan
from tests.batching.modes import MODES, Mode, every_mode
from tests.batching.virtual import World, check_ended

PATIENCE_S = 60.0  # for what must happen at once: only a failing test waits for it


@contextmanager
def driven(mode: Mode) -> Iterator[World]:
    """In real time. At the end it is drained, and the loop must stop by itself."""
    world = World(mode, max_batch_size=4, max_wait_s=0.001)
    world.model.duration_s = None
    loop = LOOPS[cast(ModeName, mode.name.split(",")[0])]
    thread = started(partial(loop, world.manager, time.monotonic))
    try:
        yield world
    finally:
        world.manager.drain()
    join(thread)
    assert len(world.books.requests) == len(world.submitted)
    assert world.model.breaches == []
    assert world.memory.used == 0


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "no wake-up arrived"


def started(client: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive()


class Faulty(Orca):
    """Does something wrong once."""

    def __init__(self, wrong: str, do: Callable[[Any], Any]) -> None:
        def once(shown: object) -> object:
            delattr(self, wrong)
            return do(shown)

        setattr(self, wrong, once)


def raises(_: object) -> Any:
    raise ZeroDivisionError("a policy of one's own")


# each breach of the contract is in tests/scheduling/test_contract.py
@pytest.mark.parametrize(
    ("wrong", "do"),
    [
        ("plan", raises),
        ("plan", lambda view: Plan([Advance(view.waiting.pop(0), 3)])),  # out of the queue
        ("plan", lambda _: Plan()),
        ("retire", lambda resident: resident),  # who is not done
        ("retire", raises),
    ],
)
def test_a_policy_that_decides_wrongly_fails_who_is_there_and_the_loop_goes_on(
    wrong: str, do: Callable[[Any], Any]
) -> None:
    with driven(replace(MODES[3], policy=lambda _: Faulty(wrong, do))) as world:
        for _ in range(2):
            wait(world.submit([1, 2, 3], 5, at_s=time.monotonic()).event)
    victim, later = world.submitted
    assert (victim.end, later.end) == ("failed", "length")
    assert "internal error" in (victim.error or "")


@every_mode
@pytest.mark.parametrize("stop", ["drain", "abort"])
def test_the_loop_wakes_for_all_that_many_threads_do_until_it_is_stopped(
    mode: Mode, stop: str
) -> None:
    """Each client hands in one request after the other and waits, leaves or listens, until it is
    refused; a wake-up that is lost leaves its thread waiting."""
    under_way = threading.Event()

    def client(number: int) -> None:
        for turn in itertools.count():
            prompt, most = [number, turn % 13], 1 + (number * turn) % 7
            leaves, streams = (number + turn) % 5 == 0, (number + turn) % 3 == 0
            try:
                inference = world.submit(prompt, most, at_s=time.monotonic(), streaming=streams)
            except RefusedError:
                return
            if leaves:
                world.manager.cancel(inference)
            while streams and inference.record is None:
                wait(inference.updated)
                inference.updated.clear()
            wait(inference.event)
            if len(world.submitted) >= 150:
                under_way.set()

    with driven(mode) as world:
        threads = [started(partial(client, n)) for n in range(8)]
        wait(under_way)
        if stop == "drain":
            world.manager.drain()
        else:
            world.manager.abort("the machine is going down")
        join(*threads)
    for inference in world.submitted:
        inference.updated.set()  # the listener cleared it
        check_ended(inference, world.model.vocab_size)
        assert inference.end != "failed" or stop == "abort"
