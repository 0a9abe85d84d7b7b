"""What policies share: which requests of a queue can be admitted next to the residents."""

from __future__ import annotations

from collections.abc import Sequence

from seams import Request, View


def fitting(view: View, queue: Sequence[Request]) -> Sequence[Request]:
    """The first of `queue`, as many as the batch limit and the free memory admit. The first one
    that does not fit ends it: if smaller ones could overtake, a large one might wait for ever."""
    places = view.max_batch_size - len(view.resident)
    if places <= 0 or not queue:
        return ()
    first = queue[:places]
    return first[: view.memory.fit(first)]
