"""What policies share: who of a queue can be admitted next to those who are resident."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seams import Request, View


def fitting(view: View, queue: Iterable[Request]) -> Iterator[Request]:
    """The first of `queue`, as many as the batch limit and the free memory admit. The first one
    that does not fit ends it: were smaller ones let past, a large one might wait for ever."""
    places = view.max_batch_size - len(view.resident)
    free = view.memory.budget - view.memory.used
    for request in queue:
        free -= view.memory.cost([request.need])
        if places <= 0 or free < 0:
            return
        places -= 1
        yield request
