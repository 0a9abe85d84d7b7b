"""The loop in a thread of its own, as the server runs it: it survives what goes wrong, sleeps and
wakes, and no request waits for ever. Real time, but no test depends on how much of it passes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from batching import LOOPS, BatchingManager
from engine.inference import Inference, RefusedError
from generate import modes
from records import IterationRecord, RequestRecord
from requested import Sampling
from scheduling.policies.orca import Orca
from seams import Advance, Plan, Policy, Request, Step, View
from tests.batching.modes import MODES, Mode, every_mode
from tests.batching.virtual import Books, check_ended
from tests.support.hash_model import HashModel
from tests.support.hashed import reference

PATIENCE_S = 60.0  # for what must happen at once: only a failing test waits for it


class Driven:
    """A manager with its books, its model and the loop of its mode."""

    def __init__(self, policy: Policy, mode: Mode = MODES[3], books: Books | None = None) -> None:
        self.books, self.model = books or Books(), HashModel(vocab_size=13)
        self.manager = BatchingManager(policy, self.books, max_batch_size=4, max_waiting=1000)
        self.manager.serve(self.model, mode.ledger(self.model.num_blocks, 1))
        name = cast(modes.ModeName, mode.name.split(",")[0])
        self.thread = threading.Thread(
            target=LOOPS[name], args=(self.manager, time.monotonic), daemon=True
        )

    def enqueue(
        self, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 5, streaming: bool = False
    ) -> Inference:
        now_s = time.monotonic()
        inference = Inference(prompt, max_tokens, Sampling(seed=9), now_s, streaming=streaming)
        self.manager.enqueue(inference)
        return inference

    def served(self, max_tokens: int = 5) -> Inference:
        """A request that has ended."""
        inference = self.enqueue(max_tokens=max_tokens)
        wait(inference.event)
        return inference

    def check(self, accepted: int) -> None:
        assert len(self.books.requests) == accepted
        assert self.model.breaches == []
        assert self.manager.memory.used == 0


@contextmanager
def driven(policy: Policy, mode: Mode = MODES[3], books: Books | None = None) -> Iterator[Driven]:
    """At the end it is drained, and the loop must stop by itself."""
    here = Driven(policy, mode, books)
    here.thread.start()
    try:
        yield here
    finally:
        here.manager.drain()
    join(here.thread)


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "no wake-up arrived"


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive()


def started(clients: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=client, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    return threads


class Faulty(Orca):
    """Does something wrong once."""

    def __init__(
        self,
        plan: Callable[[View], Plan] | None = None,
        retire: Callable[[Sequence[Request]], Sequence[Request]] | None = None,
    ) -> None:
        self.wrong_plan, self.wrong_retire = plan, retire

    def plan(self, view: View) -> Plan:
        wrong, self.wrong_plan = self.wrong_plan, None
        return wrong(view) if wrong else super().plan(view)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        wrong, self.wrong_retire = self.wrong_retire, None
        return wrong(resident) if wrong else super().retire(resident)


def raises(_: object) -> Any:
    raise ZeroDivisionError("a policy of one's own")


def takes(view: Any) -> Plan:
    return Plan([Advance(view.waiting.pop(0), 3)])


# each breach of the contract is in tests/scheduling/test_contract.py
FAULTY: dict[str, Callable[[], Policy]] = {
    "its plan raises": lambda: Faulty(raises),
    "it takes a request out of the queue": lambda: Faulty(takes),
    "it breaks the contract": lambda: Faulty(lambda _: Plan()),
    "it retires one who is not done": lambda: Faulty(retire=lambda resident: resident),
    "its retire raises": lambda: Faulty(retire=raises),
}


@pytest.mark.parametrize("make", FAULTY.values(), ids=FAULTY)
def test_a_policy_that_decides_wrongly_fails_who_is_there_and_the_loop_goes_on(
    make: Callable[[], Policy],
) -> None:
    with driven(make()) as here:
        victim, later = here.served(), here.served()
    assert (victim.end, later.end) == ("failed", "length")
    assert "internal error" in (victim.error or "")
    here.check(2)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_layout_that_raises_fails_its_iteration_and_leaves_no_counter_raised(
    lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def lay_out(steps: Sequence[Step]) -> Sequence[Step]:
        if next(calls) == 2:
            raise ZeroDivisionError("a layout of one's own")
        return steps

    monkeypatch.setitem(modes.MODES, "dynamic", replace(modes.MODES["dynamic"], lay_out=lay_out))
    with driven(Orca()) as here:
        here.manager.lookahead = lookahead
        victim, later = here.served(max_tokens=9), here.served()
    assert (victim.end, later.end) == ("failed", "length")
    assert "a layout of one's own" in (victim.error or "")
    assert not here.manager._life.is_in_flight(victim)
    assert (victim.known, victim.resident) == (len(victim.ids), False)
    assert victim.ids == [1, 2, 3, *reference([1, 2, 3], 2, seed=9, vocab_size=13)]
    here.check(2)


@pytest.mark.parametrize("wake_s", [float("inf"), 1e300])
def test_a_policy_may_wait_for_the_next_arrival_however_long_that_takes(wake_s: float) -> None:
    planned = threading.Event()

    def never(view: View) -> Plan:
        planned.set()
        return Plan(wake_s=wake_s)

    with driven(Faulty(never)) as here:
        first = here.enqueue()
        wait(planned)
        second = here.served()
        wait(first.event)
    assert first.end == second.end == "length"


class TornBooks(Books):
    def iteration(self, record: IterationRecord) -> None:
        raise OSError("no more pages")

    def request(self, record: RequestRecord) -> None:
        raise OSError("no more pages")

    def busy(self, start_s: float, end_s: float) -> None:
        raise OSError("no more pages")


def test_statistics_that_fail_cost_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    with driven(Orca(), books=TornBooks()) as here:
        assert [here.served().end for _ in range(2)] == ["length"] * 2
    assert sum("no more pages" in str(r.exc_info) for r in caplog.records) >= 2


@every_mode
def test_the_loop_wakes_for_every_submission_and_cancellation_of_many_threads(mode: Mode) -> None:
    """Each client hands in one request after the other and waits, leaves or listens; a wake-up
    that is lost leaves its thread waiting."""
    accepted: list[Inference] = []

    def client(number: int) -> None:
        for turn in range(25):
            leaves, streams = (number + turn) % 5 == 0, (number + turn) % 3 == 0
            inference = here.enqueue([number, turn % 13], 1 + (number * turn) % 7, streams)
            accepted.append(inference)
            if leaves:
                here.manager.cancel(inference)
            seen = 0
            while streams and inference.record is None:
                wait(inference.updated)
                inference.updated.clear()
                assert len(inference.ids) >= seen
                seen = len(inference.ids)
            wait(inference.event)

    with driven(mode.policy(0.001), mode) as here:
        join(*started([lambda n=n: client(n) for n in range(8)]))  # type: ignore[misc]
    assert len(accepted) == 200
    here.check(200)
    for inference in accepted:
        inference.updated.set()  # the listener cleared it
        check_ended(inference, here.model.vocab_size)


@pytest.mark.parametrize("stop", ["drain", "abort"])
def test_a_stop_amid_submissions_ends_all_that_was_accepted_and_refuses_the_rest(
    stop: str,
) -> None:
    """Clients submit as fast as they can until they are refused; the stop falls in between."""
    accepted: list[Inference] = []
    under_way = threading.Event()

    def client() -> None:
        while True:
            try:
                inference = here.enqueue(max_tokens=3)
            except RefusedError:
                return
            accepted.append(inference)
            if len(accepted) >= 40:
                under_way.set()
            wait(inference.event)

    with driven(Orca()) as here:
        threads = started([client] * 6)
        wait(under_way)
        if stop == "drain":
            here.manager.drain()
        else:
            here.manager.abort("the machine is going down")
        join(here.thread, *threads)
    here.check(len(accepted))
    assert {i.end for i in accepted} <= ({"length"} if stop == "drain" else {"length", "failed"})
