"""The contract of a policy: each breach is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from scheduling.contract import PolicyError, check_plan, check_retired
from seams import Advance, Plan
from tests.scheduling.shown import Shown, view

WAITING = Shown(1)
RESIDENT = Shown(2, generated=2, computed=5)
DONE = Shown(3, generated=8, computed=11, done=True)
STRANGER = Shown(9)

BREACHES: list[tuple[Any, str]] = [
    (None, "returned NoneType, not a seams.Plan"),
    ([Advance(WAITING, 4)], "returned list, not a seams.Plan"),
    (iter(()), "returned tuple_iterator, not a seams.Plan"),
    *(
        (Plan(wake_s=cast(Any, at_s)), r"wake_s .* a time after view.now_s, which is 100")
        for at_s in (0.05, 100.0, float("nan"), "soon")
    ),
    (Plan([Advance(WAITING, cast(Any, 2.0))]), r"advances request \d+ by 2\.0 tokens"),
    (Plan(), "planned nothing"),
    (Plan([Advance(WAITING, 0)]), "by 0 tokens"),
    (Plan([Advance(WAITING, 5)]), "advances request 1 by 5 tokens; it has 0 of 4 computed"),
    (Plan([Advance(WAITING, -1)]), "by -1 tokens"),
    (Plan([Advance(WAITING, 1), Advance(WAITING, 1)]), "twice"),
    (Plan([Advance(STRANGER, 4)]), r"advances \{9\}, neither waiting nor resident"),
    (Plan([Advance(RESIDENT, 1)], [WAITING]), r"preempts \{1\}, which are not resident"),
    (Plan([Advance(RESIDENT, 1)], hold=[RESIDENT]), r"holds \[2\], which are not resident or"),
    (Plan([Advance(WAITING, 1)], hold=[RESIDENT]), "holds request 2, which is not done"),
    (Plan([Advance(WAITING, 1)], [RESIDENT, RESIDENT]), "preempts a request twice"),
    (Plan([Advance(RESIDENT, 1)], [RESIDENT]), r"preempts and advances \{2\} at once"),
]


@pytest.mark.parametrize(("plan", "message"), BREACHES, ids=[m for _, m in BREACHES])
def test_a_plan_that_breaks_the_contract_is_named(plan: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        check_plan(plan, view([WAITING], [RESIDENT]))


def test_one_that_should_have_retired_is_named_as_such() -> None:
    left = replace(DONE, computed=12)
    with pytest.raises(PolicyError, match="computed, and is done, so retire has to return it"):
        check_plan(Plan([Advance(left, 0)]), view([], [left]))
    with pytest.raises(PolicyError, match="retire returned NoneType, not a list of requests"):
        check_retired(None, [left])  # type: ignore[arg-type]


def test_no_more_requests_are_resident_than_their_limit_allows() -> None:
    waiting = [Shown(n) for n in range(10, 14)]
    plan = Plan([Advance(request, 4) for request in waiting])
    check_plan(plan, view(waiting, limit=4))
    with pytest.raises(PolicyError, match="admits 4 requests beside 1; 4 may be resident"):
        check_plan(plan, view(waiting, [RESIDENT], limit=4))
    check_plan(plan, view(waiting, [RESIDENT], limit=4, max_resident=5))
    check_plan(Plan(plan.advance, [RESIDENT]), view(waiting, [RESIDENT], limit=4))


def test_no_more_are_admitted_than_the_memory_holds() -> None:
    waiting = [Shown(n) for n in range(10, 14)]  # each takes 12 blocks
    plan = Plan([Advance(request, 4) for request in waiting])
    check_plan(plan, view(waiting, budget=48))
    with pytest.raises(PolicyError, match=r"admits 4 requests; the 47 blocks .* hold 3 of them"):
        check_plan(plan, view(waiting, budget=47))
    with pytest.raises(PolicyError, match=r"admits 4 requests; the 36 blocks .* hold 3 of them"):
        check_plan(plan, view(waiting, [RESIDENT], budget=36, limit=8))
    check_plan(Plan(plan.advance, [RESIDENT]), view(waiting, [RESIDENT], budget=36, limit=8))


def test_a_batch_that_a_shortage_left_above_the_limit_may_run_on() -> None:
    residents = [Shown(n, generated=1, computed=4) for n in range(4)]
    plan = Plan([Advance(request, 1) for request in residents])
    check_plan(plan, view([], residents, limit=2), most_rows=4)
    with pytest.raises(PolicyError, match="plans 4 rows; the batch limit is 3"):
        check_plan(plan, view([], residents, limit=2), most_rows=3)


def test_an_iteration_has_no_more_rows_than_the_batch_limit_allows() -> None:
    residents = [Shown(n, generated=1, computed=4) for n in range(10, 14)]
    shown = view([WAITING], residents, limit=4, max_resident=8)
    everyone = [*(Advance(request, 1) for request in residents), Advance(WAITING, 4)]
    check_plan(Plan(everyone[1:]), shown)
    with pytest.raises(PolicyError, match="plans 5 rows; the batch limit is 4"):
        check_plan(Plan(everyone), shown, most_rows=8)


def test_pausing_chunks_and_waiting_for_a_moment_are_allowed() -> None:
    check_plan(Plan([Advance(WAITING, 2)]), view([WAITING], [RESIDENT]))
    check_plan(Plan(wake_s=101.0), view([WAITING], [RESIDENT]))
    check_plan(Plan([Advance(WAITING, cast(Any, np.int64(2)))]), view([WAITING], [RESIDENT]))


def test_only_residents_that_are_done_may_retire() -> None:
    check_retired([DONE], [RESIDENT, DONE])
    with pytest.raises(PolicyError, match="retires 2, which is not done"):
        check_retired([RESIDENT], [RESIDENT, DONE])
    with pytest.raises(PolicyError, match="retires a request twice"):
        check_retired([DONE, DONE], [RESIDENT, DONE])
    with pytest.raises(PolicyError, match="retires 9, which is not resident"):
        check_retired([STRANGER], [RESIDENT, DONE])
