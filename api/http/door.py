"""Where requests wait while many others do: at the door, as bytes, without a thread.

A request costs a millisecond of the interpreter before it waits in the queue: a thread, HTTP, JSON,
tokens. Under more load than a server can serve, the arrivals would take this time from the engine.
So a request that could not join the batch soon is parsed later, when its turn is near. Policies
then see the requests nearest to their turn, so this is for those that serve in order of arrival.
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
        b"/generate",
        b"/generate_stream",
        b"/",
        b"/invocations",
    }
)
AHEAD = 2  # x the batch limit: requests inside, of which half wait for a place in the batch
SPARE = 32  # inside beside them: enough where batches are small

# when the present request arrived, by the application's clock, if it waited at the door
ARRIVED_S: ContextVar[float | None] = ContextVar("arrived_s", default=None)

Guest = TypeVar("Guest")


def places_inside(max_batch_size: int) -> int:
    return AHEAD * max_batch_size + SPARE


@dataclass(slots=True)
class Door(Generic[Guest]):
    """For one thread. `places`: requests that may be inside now. `why_not`: why a further one may
    not even wait. No request waits here for longer than `patience_s`."""

    places: Callable[[], float] = lambda: math.inf
    why_not: Callable[[], ApiError | None] = lambda: None
    patience_s: float = math.inf
    clock: Callable[[], float] = time.perf_counter
    inside: int = 0
    outside: dict[Guest, float] = field(default_factory=dict)  # when each arrived, in this order

    def must_wait(self) -> bool:
        """Whether an arrival may not enter at once."""
        return bool(self.outside) or self.inside >= self.places()

    def enter(self) -> None:
        self.inside += 1

    def wait(self, guest: Guest) -> None:
        self.outside[guest] = self.clock()

    def leave(self, guest: Guest) -> None:
        """It gave up before it entered."""
        self.outside.pop(guest, None)

    def next(self) -> tuple[Guest, float] | None:
        """Who enters now, with the time of its arrival; None if nobody may. It counts as
        inside."""
        for guest, arrived_s in self.outside.items():
            overdue = self.clock() - arrived_s >= self.patience_s
            if overdue or self.inside < self.places():
                del self.outside[guest]
                self.inside += 1
                return guest, arrived_s
            break
        return None
