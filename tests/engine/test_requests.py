"""What the engine keeps of requests: the queue between its threads, and the blocks of a
rectangle."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine.inference import Inference
from engine.queue import RequestQueue
from generate.modes import RectangleLedger
from seams import Sampling
from tests.scheduling.shown import Shown

PATIENCE_S = 20.0  # only a failing test waits so long


def request() -> Inference:
    return Inference([1], 1, Sampling(), 0.0)


NEWS: dict[str, Callable[[RequestQueue], None]] = {
    "an arrival": lambda queue: queue.put(request()),
    "a departure": lambda queue: queue.leave(request(), "cancelled"),
    "the drain": lambda queue: queue.drain(),
    "the end": lambda queue: queue.abort("for a reason"),
}


@pytest.mark.parametrize("happens", NEWS.values(), ids=NEWS)
def test_an_event_after_the_loops_last_look_keeps_it_awake(
    happens: Callable[[RequestQueue], None],
) -> None:
    queue = RequestQueue(8)
    queue.open(context=8, kv_tokens=8)
    queue.read()
    happens(queue)
    sleeper = threading.Thread(target=queue.sleep, args=(float("inf"),), daemon=True)
    sleeper.start()
    sleeper.join(PATIENCE_S)
    assert not sleeper.is_alive()


def test_a_rectangle_costs_its_longest_row_for_every_row_and_excludes_another_rectangle() -> None:
    ledger = RectangleLedger(30, 4)
    rows = [Shown(1, 0.0, 4, 8), Shown(2, 0.0, 9, 2), Shown(3)]
    for leaving in ((0, 1), (1, 0)):
        assert ledger.fit(rows[:1]) == 1
        ledger.open(rows[:2])
        assert ledger.used == 2 * 5  # 9 + 8 columns in blocks of 4
        # consecutive, whatever left before
        assert ledger.grow([]) == {1: tuple(range(5)), 2: tuple(range(5, 10))}
        assert ledger.fit(rows[2:]) == 0
        assert ledger.fit(rows[2:], rows[:2]) == 1
        for row in leaving:
            ledger.release(rows[row])
        assert ledger.used == 0
