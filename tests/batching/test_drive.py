"""The loop in a thread of its own, as the server runs it: it survives what goes wrong, sleeps and
wakes, and no request waits for ever. Real time, but no test depends on how much of it passes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest

from batching import LOOPS, BatchingManager
from engine.inference import Inference, RefusedError
from generate.modes import ModeName
from requested import Sampling
from scheduling.policies.orca import Orca
from seams import Advance, Plan, Policy
from tests.batching.modes import MODES, Mode, every_mode
from tests.batching.virtual import Books, check_ended
from tests.support.hash_model import HashModel

PATIENCE_S = 60.0  # for what must happen at once: only a failing test waits for it


class Driven:
    """A manager with its books, its model and the loop of its mode."""

    def __init__(self, policy: Policy, mode: Mode = MODES[3]) -> None:
        self.books, self.model = Books(), HashModel(vocab_size=13)
        self.manager = BatchingManager(policy, self.books, max_batch_size=4, max_waiting=1000)
        self.manager.serve(self.model, mode.ledger(self.model.num_blocks, 1))
        loop = LOOPS[cast(ModeName, mode.name.split(",")[0])]
        self.thread = threading.Thread(target=loop, args=(self.manager, time.monotonic))
        self.thread.daemon = True

    def enqueue(
        self, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 5, streaming: bool = False
    ) -> Inference:
        now_s = time.monotonic()
        inference = Inference(prompt, max_tokens, Sampling(seed=9), now_s, streaming=streaming)
        self.manager.enqueue(inference)
        return inference

    def served(self) -> Inference:
        """A request that has ended."""
        inference = self.enqueue()
        wait(inference.event)
        return inference

    def check(self, accepted: int) -> None:
        assert len(self.books.requests) == accepted
        assert self.model.breaches == []
        assert self.manager.memory.used == 0


@contextmanager
def driven(policy: Policy, mode: Mode = MODES[3]) -> Iterator[Driven]:
    """At the end it is drained, and the loop must stop by itself."""
    here = Driven(policy, mode)
    here.thread.start()
    try:
        yield here
    finally:
        here.manager.drain()
    join(here.thread)


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
    with driven(Faulty(wrong, do)) as here:
        victim, later = here.served(), here.served()
    assert (victim.end, later.end) == ("failed", "length")
    assert "internal error" in (victim.error or "")
    here.check(2)


@every_mode
@pytest.mark.parametrize("stop", ["drain", "abort"])
def test_the_loop_wakes_for_all_that_many_threads_do_until_it_is_stopped(
    mode: Mode, stop: str
) -> None:
    """Each client hands in one request after the other and waits, leaves or listens, until it is
    refused; a wake-up that is lost leaves its thread waiting."""
    accepted: list[Inference] = []
    under_way = threading.Event()

    def client(number: int) -> None:
        for turn in itertools.count():
            leaves, streams = (number + turn) % 5 == 0, (number + turn) % 3 == 0
            try:
                inference = here.enqueue([number, turn % 13], 1 + (number * turn) % 7, streams)
            except RefusedError:
                return
            accepted.append(inference)
            if leaves:
                here.manager.cancel(inference)
            while streams and inference.record is None:
                wait(inference.updated)
                inference.updated.clear()
            wait(inference.event)
            if len(accepted) >= 150:
                under_way.set()

    with driven(mode.policy(0.001), mode) as here:
        threads = [started(partial(client, n)) for n in range(8)]
        wait(under_way)
        if stop == "drain":
            here.manager.drain()
        else:
            here.manager.abort("the machine is going down")
        join(here.thread, *threads)
    here.check(len(accepted))
    for inference in accepted:
        inference.updated.set()  # the listener cleared it
        check_ended(inference, here.model.vocab_size)
        assert inference.end != "failed" or stop == "abort"
