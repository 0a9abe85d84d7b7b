"""How composed policies admit: residents give way as far as newcomers need, found in few trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from scheduling.composed import Pausing
from scheduling.lending import LentMemory
from scheduling.policies.orders.priority import ByPriority
from scheduling.policies.stall_free import StallFree
from seams import Request
from tests.scheduling.shown import Shown, view


class Counted(LentMemory):
    """A memory that counts how often it is asked."""

    asked = 0

    def fit(self, requests: Iterable[Request], releasing: Iterable[Request] = ()) -> int:
        self.asked += 1
        return super().fit(requests, releasing)


def test_as_few_residents_as_newcomers_need_are_preempted_the_least_urgent_first() -> None:
    residents = [Shown(k, priority=k, computed=4, room=10) for k in range(1, 201)]
    urgent = [Shown(1000 + k, prompt_tokens=4, max_tokens=6, priority=-1) for k in range(64)]
    shown = view(urgent, residents, limit=64, max_resident=220, budget=2100, used=2000)
    memory = Counted(shown.memory, [])
    plan = Pausing(ByPriority(), StallFree(1000)).plan(replace(shown, memory=memory))
    assert {step.request.id for step in plan.advance} == {request.id for request in urgent}
    # places for 20 more, memory for 10 more: 54 give way
    assert sorted(request.id for request in plan.preempt) == list(range(147, 201))
    assert memory.asked <= 15
