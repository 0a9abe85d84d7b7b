"""The queue between the threads that submit and the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine.inference import Inference
from engine.queue import RequestQueue
from requested import Sampling

PATIENCE_S = 20.0  # only a failing test waits so long


def request() -> Inference:
    return Inference([1], 1, Sampling(), 0.0)


def an_open_queue() -> RequestQueue:
    queue = RequestQueue(8)
    queue.open(context=8, kv_tokens=8)
    return queue


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
    """In the order of the loop: read, is it over, sleep; the update comes just before it sleeps."""
    queue = an_open_queue()
    queue.read()
    assert not queue.is_over()
    happens(queue)
    sleeper = threading.Thread(target=queue.sleep, args=(float("inf"),), daemon=True)
    sleeper.start()
    sleeper.join(PATIENCE_S)
    assert not sleeper.is_alive()


def test_ids_increase_in_the_order_of_arrival_not_of_construction() -> None:
    queue = an_open_queue()
    requests = [request() for _ in range(5)]
    arriving = [requests[n] for n in (3, 0, 4, 1, 2)]
    for inference in arriving:
        queue.put(inference)
    assert queue.read().arrivals == arriving
    ids = [inference.id for inference in arriving]
    assert ids == sorted(set(ids))
