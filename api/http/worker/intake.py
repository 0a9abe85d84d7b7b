"""Requests that would only wait in the queue stay in the intake first: as bytes, without a thread.

Before a request waits in the queue it costs a millisecond of the interpreter, for a thread, HTTP,
JSON and tokens. Under more load than a server can serve, the arrivals would take this time from the
engine. So a request that cannot join the batch soon is handled later, when its turn is near.
Policies then see only the requests nearest to their turn; the intake is for those that admit in
order of arrival.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from api.http.errors import ApiError

GENERATION_PATHS = frozenset(
    {
        b"/inference",
        b"/v1/completions",
        b"/v1/chat/completions",
        b"/v1/responses",
        b"/generate",
        b"/generate_stream",
        b"/",
        b"/invocations",
    }
)
AHEAD = 2  # x the residents' limit: requests with a handler, of which half wait in the queue
SPARE = 32  # further ones: enough where batches are small

# when the present request arrived, by the application's clock, if it was pending in the intake
ARRIVED_S: ContextVar[float | None] = ContextVar("arrived_s", default=None)

Item = TypeVar("Item")


def handled_at_once(max_resident: int) -> int:
    """Requests that may have a handler while others are pending."""
    return AHEAD * max_resident + SPARE


@dataclass(slots=True)
class Intake(Generic[Item]):
    """For one thread. `most`: how many requests may have a handler now. `refusal`: the error for
    a further one that may not even be pending. `left` is called for each whose client leaves. No
    request is pending for longer than `patience_s`."""

    most: Callable[[], float] = lambda: math.inf
    refusal: Callable[[], ApiError | None] = lambda: None
    patience_s: float = math.inf
    left: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.perf_counter
    handled: int = 0
    pending: dict[Item, float] = field(default_factory=dict)  # since when, in order of arrival

    def is_full(self) -> bool:
        """Whether an arrival gets no handler at once."""
        return bool(self.pending) or self.handled >= self.most()

    def handle(self) -> None:
        """An arrival gets a handler."""
        self.handled += 1

    def add(self, item: Item) -> None:
        self.pending[item] = self.clock()

    def leave(self, item: Item) -> None:
        """Its client has left."""
        self.left()
        del self.pending[item]

    def take(self) -> tuple[Item, float] | None:
        """The next request to get a handler, with the time of its arrival; None while there is
        none."""
        item = next(iter(self.pending), None)
        if item is None:
            return None
        overdue = self.clock() - self.pending[item] >= self.patience_s
        if not overdue and self.handled >= self.most():
            return None
        self.handled += 1
        return item, self.pending.pop(item)
