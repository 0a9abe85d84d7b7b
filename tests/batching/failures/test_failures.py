"""When the loop gives up: a device that is lost, and iterations that fail one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from batching import BatchingManager, EngineFailedError, dynamic_batching_loop
from engine.blocks import Ledger
from engine.failures import FAILURES_IN_A_ROW
from engine.inference import DrainingError, Inference
from requested import Sampling
from scheduling.policies.orca import Orca
from seams import Plan, View
from tests.batching.virtual import Books
from tests.support.hash_model import HashModel


def manager_of(model: HashModel, max_batch_size: int = 1) -> BatchingManager:
    manager = BatchingManager(Orca(), Books(), max_batch_size=max_batch_size, max_waiting=100)
    manager.serve(model, Ledger(model.num_blocks))
    return manager


def submit(manager: BatchingManager, prompt: int, max_tokens: int = 1) -> Inference:
    inference = Inference([prompt], max_tokens, Sampling(), time.monotonic())
    manager.enqueue(inference)
    return inference


def drive(manager: BatchingManager) -> None:
    dynamic_batching_loop(manager, time.monotonic)


def test_a_lost_device_fails_everyone_at_once_and_nothing_more_is_taken_in() -> None:
    manager = manager_of(model := HashModel(lost_from=2), max_batch_size=2)
    requests = [submit(manager, n, max_tokens=5) for n in range(4)]
    with pytest.raises(EngineFailedError, match="the device is lost: an assertion"):
        drive(manager)
    assert all("an assertion failed" in (i.error or "") and i.event.is_set() for i in requests)
    # of those that were in the iteration one may be the cause; the others may try elsewhere
    assert [i.cause for i in requests] == [None, None, "shutdown", "shutdown"]
    assert not manager.ready
    assert "the device is lost" in (manager.unavailable or "")
    with pytest.raises(DrainingError):
        submit(manager, 9)
    assert (model.iterations, manager.memory.used) == (2, 0)


def test_failures_in_a_row_of_different_requests_end_the_loop() -> None:
    manager = manager_of(HashModel(fail_on=range(1, 100)))
    requests = [submit(manager, n) for n in range(FAILURES_IN_A_ROW + 1)]
    with pytest.raises(EngineFailedError, match="5 iterations in a row failed, the last with"):
        drive(manager)
    assert [i.cause for i in requests] == [None] * FAILURES_IN_A_ROW + ["shutdown"]


def test_a_policy_that_always_fails_ends_the_loop_too() -> None:
    class Broken(Orca):
        def plan(self, view: View) -> Plan:
            submit(manager, view.now_s > 0 and len(books.requests) + 1)  # a request always arrives
            raise ZeroDivisionError("a policy of one's own")

    books = Books()
    manager = BatchingManager(Broken(), books, max_batch_size=1, max_waiting=100)
    manager.serve(model := HashModel(), Ledger(model.num_blocks))
    submit(manager, 0)
    with pytest.raises(EngineFailedError, match="a policy of one's own"):
        drive(manager)


def one_request_again_and_again(number: int) -> tuple[int, bool]:
    return 7, True


def a_success_in_between(number: int) -> tuple[int, bool]:
    return number % 256, number % FAILURES_IN_A_ROW != 0


@pytest.mark.parametrize("course", [one_request_again_and_again, a_success_in_between])
def test_the_loop_survives(course: Callable[[int], tuple[int, bool]]) -> None:
    """One request that fails however often it is sent, and failures with successes between."""
    courses = [course(number) for number in range(1, 6 * FAILURES_IN_A_ROW)]
    model = HashModel(fail_on={n for n, (_, fails) in enumerate(courses, start=1) if fails})
    manager = manager_of(model)
    requests = [submit(manager, prompt) for prompt, _ in courses]
    manager.drain()
    drive(manager)
    assert [i.end == "failed" for i in requests] == [fails for _, fails in courses]
    assert manager.unavailable == "the server is shutting down"
