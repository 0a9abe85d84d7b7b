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
from generate.modes import make_ledger
from records import IterationRecord, RequestRecord
from requested import Sampling
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Advance, Plan, Policy, Request, Step, View
from tests.batching.modes import MODES, Mode, every_mode
from tests.batching.virtual import Books, check_ended, drive
from tests.support.hash_model import HashModel
from tests.support.hashed import reference

PATIENCE_S = 60.0  # for what must happen at once: only a failing test waits for it


@contextmanager
def driven(
    manager: BatchingManager, model: HashModel, mode: Mode = MODES[3]
) -> Iterator[threading.Thread]:
    """The manager's loop in a thread; at the end it is drained and must stop by itself."""
    manager.serve(model, mode.ledger(model.num_blocks, model.block_tokens))
    thread = threading.Thread(
        target=drive, args=(manager, mode.lay_out, time.monotonic), daemon=True
    )
    thread.start()
    try:
        yield thread
    finally:
        manager.drain()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def manager_of(policy: Policy, books: Books | None = None) -> BatchingManager:
    return BatchingManager(policy, books or Books(), max_batch_size=8, max_waiting=1000)


def request(
    prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 5, streaming: bool = False
) -> Inference:
    return Inference(prompt, max_tokens, Sampling(seed=9), time.monotonic(), streaming=streaming)


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "no wake-up arrived"


def served(manager: BatchingManager, max_tokens: int = 5) -> Inference:
    """A request that has ended."""
    inference = request(max_tokens=max_tokens)
    manager.enqueue(inference)
    wait(inference.event)
    return inference


class Faulty(Orca):
    """Does something wrong once, on request."""

    def __init__(self) -> None:
        self.wrong_plan: Callable[[View], Plan] | None = None
        self.wrong_retire: Callable[[Sequence[Request]], Sequence[Request]] | None = None

    def plan(self, view: View) -> Plan:
        wrong, self.wrong_plan = self.wrong_plan, None
        return wrong(view) if wrong else super().plan(view)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        wrong, self.wrong_retire = self.wrong_retire, None
        return wrong(resident) if wrong else super().retire(resident)


def stranger() -> Inference:
    """One that ended long ago, say."""
    inference = request()
    inference.id = 1000
    return inference


def raises(_: object) -> Plan:
    raise ZeroDivisionError("a policy of one's own")


def takes(view: Any) -> Plan:
    return Plan([Advance(view.waiting.pop(0), 3)])


WRONG_PLANS: dict[str, Callable[[View], Plan]] = {
    "it raises": raises,
    "it takes a request out of the queue": takes,
    "it is no plan": lambda view: cast(Any, [Advance(view.waiting[0], 3)]),
    "nothing is planned": lambda _: Plan(),
    "nothing is computed": lambda view: Plan([Advance(r, 0) for r in view.waiting]),
    "more is computed than is known": lambda view: Plan([Advance(view.waiting[0], 99)]),
    "one comes twice": lambda view: Plan([Advance(view.waiting[0], 1)] * 2),
    "a stranger is advanced": lambda _: Plan([Advance(stranger(), 3)]),
    "a stranger is preempted": lambda view: Plan([Advance(view.waiting[0], 3)], [stranger()]),
}


@pytest.mark.parametrize("wrong", WRONG_PLANS.values(), ids=WRONG_PLANS)
def test_a_policy_that_plans_wrongly_fails_who_is_there_and_the_loop_goes_on(
    wrong: Callable[[View], Plan],
) -> None:
    policy, books = Faulty(), Books()
    model = HashModel()
    policy.wrong_plan = wrong
    with driven(manager := manager_of(policy, books), model):
        victim, later = served(manager), served(manager)
    assert victim.end == "failed"
    assert "internal error" in (victim.error or "")
    assert later.end == "length"
    assert len(books.requests) == 2
    assert model.breaches == []
    assert manager.memory.used == 0


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_layout_that_raises_fails_its_iteration_and_leaves_no_counter_raised(
    lookahead: int,
) -> None:
    calls = itertools.count()

    def lay_out(steps: Sequence[Step]) -> Sequence[Step]:
        if next(calls) == 2:
            raise ZeroDivisionError("a layout of one's own")
        return steps

    model = HashModel()
    manager = BatchingManager(
        Orca(), books := Books(), max_batch_size=8, max_waiting=9, lookahead=lookahead
    )
    with driven(manager, model, replace(MODES[3], lay_out=lay_out)):
        victim, later = served(manager, max_tokens=9), served(manager)
    assert (victim.end, later.end) == ("failed", "length")
    assert "a layout of one's own" in (victim.error or "")
    assert (victim.num_in_flight, victim.expected, victim.resident) == (0, 0, False)
    assert victim.ids == [1, 2, 3, *reference([1, 2, 3], 2, seed=9)]
    assert manager.memory.used == 0
    assert len(books.requests) == 2
    assert model.breaches == []


WRONG_RETIRES: dict[str, Callable[[Sequence[Request]], Sequence[Request]]] = {
    "it raises": lambda _: [][1],
    "one who is not done": lambda resident: resident,
    "a stranger": lambda _: [stranger()],
}


@pytest.mark.parametrize("wrong", WRONG_RETIRES.values(), ids=WRONG_RETIRES)
def test_a_policy_that_retires_wrongly_leaves_nobody_waiting_for_ever(
    wrong: Callable[[Sequence[Request]], Sequence[Request]],
) -> None:
    policy = Faulty()
    policy.wrong_retire = wrong
    model = HashModel()
    with driven(manager := manager_of(policy), model):
        victim, later = served(manager), served(manager)
    assert victim.end == "failed"
    assert later.end == "length"
    assert manager.memory.used == 0


@pytest.mark.parametrize("wake_s", [float("inf"), 1e300])
def test_a_policy_may_wait_for_the_next_arrival_however_long_that_takes(wake_s: float) -> None:
    planned = threading.Event()

    def never(view: View) -> Plan:
        planned.set()
        return Plan(wake_s=wake_s)

    policy = Faulty()
    policy.wrong_plan = never
    with driven(manager := manager_of(policy), HashModel()):
        first = request()
        manager.enqueue(first)
        wait(planned)
        second = request()
        manager.enqueue(second)
        wait(first.event)
        wait(second.event)
    assert first.end == second.end == "length"


LEAVING: dict[str, Callable[[BatchingManager, Inference], None]] = {
    "cancelled": lambda manager, inference: manager.cancel(inference),
    "failed": lambda manager, inference: manager.abort("the machine is going down"),
}


@pytest.mark.parametrize("end", LEAVING)
@pytest.mark.parametrize("when", ["asleep", "about to sleep"])
def test_a_loop_that_waits_for_arrivals_also_hears_of_departures(end: str, when: str) -> None:
    """A policy without hurry: the loop would sleep for ever. The one who leaves does so while it
    sleeps (or a moment before), or inside the decision, which is surely before."""
    planned = threading.Event()
    policy = Faulty()
    manager = manager_of(policy)
    inference = request()

    def never(view: View) -> Plan:
        if when == "about to sleep":
            LEAVING[end](manager, inference)
        planned.set()
        return Plan(wake_s=float("inf"))

    policy.wrong_plan = never
    with driven(manager, HashModel()):
        manager.enqueue(inference)
        wait(planned)
        if when == "asleep":
            LEAVING[end](manager, inference)
        wait(inference.event)
    assert inference.end == end
    assert inference.generated == 0


class TornBooks(Books):
    def iteration(self, record: IterationRecord) -> None:
        raise OSError("no more pages")

    def request(self, record: RequestRecord) -> None:
        raise OSError("no more pages")

    def busy(self, start_s: float, end_s: float) -> None:
        raise OSError("no more pages")


@every_mode
def test_statistics_that_fail_cost_nobody_an_answer(
    mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    with driven(manager := manager_of(mode.policy(0.0), TornBooks()), HashModel(), mode):
        for _ in range(2):
            assert served(manager).end == "length"
    assert sum("no more pages" in str(r.exc_info) for r in caplog.records) >= 2


@every_mode
def test_the_loop_wakes_for_every_submission_and_cancellation_of_many_threads(mode: Mode) -> None:
    """Each client hands in one request after the other and waits, leaves or listens; a wake-up
    that is lost leaves its thread waiting."""
    books = Books()
    model = HashModel(vocab_size=13)
    manager = BatchingManager(mode.policy(0.001), books, max_batch_size=4, max_waiting=1000)
    accepted: list[Inference] = []

    def client(number: int) -> None:
        for turn in range(25):
            leaves, streams = (number + turn) % 5 == 0, (number + turn) % 3 == 0
            inference = request([number, turn % 13], 1 + (number * turn) % 7, streams)
            manager.enqueue(inference)
            accepted.append(inference)
            if leaves:
                manager.cancel(inference)
            seen = 0
            while streams and inference.record is None:
                wait(inference.updated)
                inference.updated.clear()
                assert len(inference.ids) >= seen
                seen = len(inference.ids)
            wait(inference.event)

    with driven(manager, model, mode):
        threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive()
    assert len(accepted) == len(books.requests) == 200
    assert model.breaches == []
    assert manager.memory.used == 0
    for inference in accepted:
        inference.updated.set()  # the listener cleared it
        check_ended(inference, model.vocab_size)


@pytest.mark.parametrize("stop", ["drain", "abort"])
def test_a_stop_amid_submissions_ends_all_that_was_accepted_and_refuses_the_rest(
    stop: str,
) -> None:
    """Clients submit as fast as they can until they are refused; the stop falls in between."""
    books = Books()
    model = HashModel()
    manager = manager_of(Orca(), books)
    accepted: list[Inference] = []
    under_way = threading.Event()

    def client() -> None:
        while True:
            inference = request(max_tokens=3)
            try:
                manager.enqueue(inference)
            except RefusedError:
                return
            accepted.append(inference)
            if len(accepted) >= 40:
                under_way.set()
            wait(inference.event)

    with driven(manager, model) as loop:
        threads = [threading.Thread(target=client, daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait(under_way)
        if stop == "drain":
            manager.drain()
        else:
            manager.abort("the machine is going down")
        loop.join(PATIENCE_S)
        assert not loop.is_alive()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    ends = {inference.end for inference in accepted}
    assert len(books.requests) == len(accepted)
    assert ends <= ({"length"} if stop == "drain" else {"length", "failed"})
    assert manager.memory.used == 0


def test_the_waiting_limit_holds_while_the_loop_is_busy() -> None:
    """The loop is held in an iteration: what arrives meanwhile is counted, and refused beyond."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        inside.set()
        wait(go_on)

    model = HashModel(before_iteration=hold)
    manager = BatchingManager(Orca(), Books(), max_batch_size=8, max_waiting=3)
    with driven(manager, model):
        first = request()
        manager.enqueue(first)
        wait(inside)
        others = [request() for _ in range(3)]
        for inference in others:
            manager.enqueue(inference)
        with pytest.raises(RefusedError, match=r"3 requests are waiting already \(--max-waiting\)"):
            manager.enqueue(request())
        go_on.set()
        for inference in (first, *others):
            wait(inference.event)
            assert inference.end == "length"


def test_one_who_leaves_during_an_iteration_is_gone_after_it() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 2:
            inside.set()
            wait(go_on)

    model = HashModel(before_iteration=hold)
    with driven(manager := manager_of(Orca()), model):
        leaver, stayer = request(max_tokens=100), request(max_tokens=100)
        manager.enqueue(leaver)
        manager.enqueue(stayer)
        wait(inside)
        manager.cancel(leaver)
        go_on.set()
        wait(leaver.event)
        wait(stayer.event)
    assert leaver.end == "cancelled"
    assert leaver.generated <= 2
    assert stayer.generated == 100


def test_a_server_that_says_it_is_ready_refuses_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, model = manager_of(Orca()), HashModel()
    accept = manager.queue.open

    def not_ready_yet(*limits: int) -> None:
        assert not manager.ready
        accept(*limits)

    monkeypatch.setattr(manager.queue, "open", not_ready_yet)
    manager.serve(model, make_ledger("dynamic", model))
    assert manager.ready


def test_each_modes_loop_ends_all_requests_and_then_itself() -> None:
    policies: dict[str, Policy] = {
        "nobatch": NoBatch(),
        "static": Static(0.0),
        "dynamic": Orca(),
    }
    for mode, loop in LOOPS.items():
        manager = manager_of(policies[mode])
        model = HashModel()
        manager.serve(model, make_ledger(mode, model))
        inferences = [request(list(range(1, 2 + n)), 1 + n) for n in range(5)]
        for inference in inferences:
            manager.enqueue(inference)
        manager.drain()
        loop(manager, time.monotonic)
        for inference in inferences:
            check_ended(inference, model.vocab_size)
            assert inference.end == "length"
