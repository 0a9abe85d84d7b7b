"""What policies are shown, as plain data: they need nothing else to be tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from seams import Need, Request, ServiceClass, View
from tests.hash_model import HashMemory


@dataclass(frozen=True, slots=True)
class Shown:
    """A request as a policy sees it."""

    id: int
    arrival_s: float = 0.0
    prompt_tokens: int = 4
    max_tokens: int = 8
    generated: int = 0
    computed: int = 0
    done: bool = False
    service_class: ServiceClass = "immediate"
    deadline_s: float | None = None
    room: int = 0

    @property
    def known(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def need(self) -> Need:
        return Need(self.known, self.max_tokens - self.generated)


def view(
    waiting: Sequence[Request] = (),
    resident: Sequence[Request] = (),
    *,
    now_s: float = 100.0,
    limit: int = 4,
    budget: int = 1000,
    used: int = 0,
    rectangles: bool = False,
) -> View:
    memory = HashMemory(budget, rectangles=rectangles)
    memory.used = used
    deferred = sum(request.service_class == "deferred" for request in (*waiting, *resident))
    return View(now_s, waiting, resident, limit, memory, deferred)


@st.composite
def queues(draw: st.DrawFn, most: int = 12) -> list[Shown]:
    """Waiting requests in order of arrival."""
    arrivals_s = sorted(draw(st.lists(st.integers(0, 100), max_size=most)))
    return [
        Shown(id, float(at_s), draw(st.integers(1, 30)), draw(st.integers(1, 30)))
        for id, at_s in enumerate(arrivals_s)
    ]


@st.composite
def batches(draw: st.DrawFn, least: int = 1, most: int = 6) -> list[Shown]:
    """Residents after an iteration: all but the newest token of each is computed."""
    generated = draw(st.lists(st.integers(1, 8), min_size=least, max_size=most))
    return [
        Shown(1000 + n, generated=g, computed=4 + g - 1, done=g == 8)
        for n, g in enumerate(generated)
    ]
