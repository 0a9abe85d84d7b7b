"""Immediate requests come first: every way to serve two classes, over every base policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from scheduling.classes.budget import Budget
from scheduling.classes.simple import Exclusive, NoneWaiting, Priority
from scheduling.contract import check_plan
from scheduling.growth import with_growth
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.registry import JOINING, PAUSING
from seams import Plan, Policy, Request, View
from tests.batching.modes import POLICIES
from tests.scheduling.classes.test_budget import mixtures, of_class
from tests.scheduling.law import Law
from tests.scheduling.shown import Shown, view

WAYS: dict[str, Callable[[Policy], Policy]] = {
    "budget": lambda inner: Budget(inner, Law()),
    "priority": Priority,
    "exclusive": Exclusive,
    "none-waiting": NoneWaiting,
}
every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def admitted(plan: Plan, shown: View) -> list[Request]:
    return [step.request for step in plan.advance if step.request in shown.waiting]


@every_way
@every_policy
@given(shown=mixtures().filter(lambda shown: shown.waiting or shown.resident))
def test_no_deferred_request_takes_the_place_of_an_immediate_one(
    make: Callable[[], Policy], way: Callable[[Policy], Policy], shown: View
) -> None:
    """Whom the base policy would admit if only immediate requests waited is admitted."""
    plan = way(make()).plan(shown)
    check_plan(plan, shown)
    new = admitted(plan, shown)
    if not of_class(new, "deferred"):
        return
    immediate = of_class(shown.waiting, "immediate")
    alone = make().plan(replace(shown, waiting=immediate)) if immediate else Plan()
    assert [r for r in admitted(alone, shown) if r not in new] == []


@every_policy
def test_priority_gives_deferred_requests_the_places_that_are_left(
    make: Callable[[], Policy],
) -> None:
    deferred = [Shown(n, service_class="deferred", max_tokens=2) for n in (0, 1, 2)]
    waiting = [*deferred, Shown(3), Shown(4)]
    plan = Priority(make()).plan(view(waiting, limit=4))
    served = [step.request.id for step in plan.advance]
    assert served[:2] == [3, 4]
    # a budget of 10 tokens ends with a part of the third prompt, which is left to no deferred one
    # where the policy would put that before an immediate one
    name = next(name for name, one in POLICIES.items() if one is make)
    composed = [[], [0]] if name in (*JOINING, *PAUSING) else [[0, 1]]
    assert served[2:] in ([[0]] if name in ("stall-free", "fair-slack") else composed)


def test_a_shorter_deferred_request_does_not_overtake_a_longer_immediate_one() -> None:
    waiting = [Shown(0, service_class="deferred", max_tokens=1), Shown(1, max_tokens=30)]
    plan = Priority(ShortestFirst()).plan(view(waiting, limit=1))
    assert [step.request.id for step in plan.advance] == [1]


def test_if_residents_grow_deferred_requests_are_the_first_to_wait_again() -> None:
    """The plan admits both; once the resident has grown by three tokens one of them fits."""
    resident = Shown(9, generated=1, computed=4, room=4)
    waiting = [Shown(10, service_class="deferred", max_tokens=1), Shown(11, max_tokens=3)]
    shown = view(waiting, [resident], budget=17, used=4, growth_tokens=3)
    plan = Priority(ShortestFirst()).plan(shown)
    assert len(plan.advance) == 3
    grown = with_growth(plan, shown)
    assert [step.request.id for step in grown.advance] == [9, 11]
