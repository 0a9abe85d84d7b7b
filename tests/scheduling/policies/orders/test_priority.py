"""Strict priority: the lowest number first, residents included."""

from __future__ import annotations

from scheduling.registry import make_policy
from seams import Plan
from serving.config import Config
from tests.scheduling.shown import Shown, view

CONFIG = Config(mode="dynamic", policy="priority", max_batch_size=2)


def plan(waiting: list[Shown], resident: list[Shown], used: int = 0, budget: int = 1000) -> Plan:
    """Of two rows, where eight requests may be resident."""
    shown = view(waiting, resident, limit=2, max_resident=8, budget=budget, used=used)
    return make_policy("priority", CONFIG).plan(shown)


def runs(decided: Plan) -> set[int]:
    return {step.request.id for step in decided.advance}


def running(id: int, *, priority: int) -> Shown:
    """It holds twelve tokens' memory."""
    return Shown(id, computed=4, generated=1, priority=priority, room=12)


def test_a_lower_number_runs_first_and_equals_go_by_arrival() -> None:
    waiting = [Shown(1, priority=2), Shown(2, priority=-1), Shown(3), Shown(4)]
    assert runs(plan(waiting, [])) == {2, 3}


def test_an_urgent_request_pauses_the_least_urgent_resident_which_keeps_its_memory() -> None:
    residents = [
        Shown(1, computed=4, generated=1, priority=1),
        Shown(2, computed=4, generated=1, priority=2),
    ]
    decided = plan([Shown(3, priority=0)], residents)
    assert runs(decided) == {1, 3}
    assert list(decided.preempt) == []
    assert runs(plan([Shown(3, priority=2)], residents)) == {1, 2}, "an equal one does not"


def test_it_takes_memory_from_the_least_urgent_only_if_it_needs_it() -> None:
    residents = [running(1, priority=1), running(2, priority=2)]
    for budget, preempted in ((36, []), (35, [2])):
        decided = plan([Shown(3, priority=0)], residents, used=24, budget=budget)
        assert runs(decided) == {1, 3}
        assert [request.id for request in decided.preempt] == preempted


def test_it_takes_the_memory_of_a_running_one_where_rows_are_free() -> None:
    residents = [running(1, priority=1), running(2, priority=2)]
    shown = view([Shown(3, priority=0)], residents, limit=8, budget=35, used=24)
    decided = make_policy("priority", CONFIG).plan(shown)
    assert runs(decided) == {1, 3}
    assert [request.id for request in decided.preempt] == [2]
    shown = view([Shown(3, priority=2)], residents, limit=8, budget=35, used=24)
    assert not make_policy("priority", CONFIG).plan(shown).preempt, "an equal one does not"
