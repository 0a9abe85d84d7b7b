"""The contract of a policy: each breach is named."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest

from scheduling.contract import PolicyError, check_plan, check_retired
from seams import Advance, Plan, View
from tests.scheduling.shown import Shown, view

WAITING = Shown(1)
RESIDENT = Shown(2, generated=2, computed=5)
DONE = Shown(3, generated=8, computed=11, done=True)
STRANGER = Shown(9)

BREACHES: list[tuple[Any, str]] = [
    (None, "returned NoneType, not a seams.Plan"),
    *(
        (Plan(wake_s=cast(Any, at_s)), r"wake_s .* a time after view.now_s, which is 100")
        for at_s in (0.05, 100.0, float("nan"), "soon")
    ),
    (Plan([Advance(WAITING, cast(Any, 2.0))]), r"advances request \d+ by 2\.0 tokens"),
    (Plan(), "planned nothing"),
    (Plan([Advance(WAITING, 0)]), "by 0 tokens"),
    (Plan([Advance(WAITING, 5)]), "advances request 1 by 5 tokens; it has 0 of 4 computed"),
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


FOUR = [Shown(n) for n in range(10, 14)]  # each takes 12 blocks
ALL = [Advance(request, 4) for request in FOUR]
DECODING = [Shown(n, generated=1, computed=4) for n in range(20, 24)]
DECODES = [Advance(request, 1) for request in DECODING]


@pytest.mark.parametrize(
    ("plan", "shown", "most_rows", "message"),
    [
        (Plan(ALL), view(FOUR), None, None),
        (Plan(ALL), view(FOUR, [RESIDENT]), None, "admits 4 requests beside 1; 4 may be resident"),
        (Plan(ALL), view(FOUR, [RESIDENT], max_resident=5), None, None),
        (Plan(ALL, [RESIDENT]), view(FOUR, [RESIDENT]), None, None),
        (Plan(ALL), view(FOUR, budget=48), None, None),
        (Plan(ALL), view(FOUR, budget=47), None, r"the 47 blocks .* hold 3 of them"),
        (Plan(ALL), view(FOUR, [RESIDENT], budget=36, limit=8), None, r"the 36 blocks .* hold 3"),
        (Plan(ALL, [RESIDENT]), view(FOUR, [RESIDENT], budget=36, limit=8), None, None),
        # a batch that a shortage left above the limit may run on
        (Plan(DECODES), view([], DECODING, limit=2), 4, None),
        (Plan(DECODES), view([], DECODING, limit=2), 3, "plans 4 rows; the batch limit is 3"),
        # but with a newcomer it has no more rows than the limit
        (Plan([*DECODES[1:], ALL[0]]), view(FOUR, DECODING, max_resident=8), None, None),
        (Plan([*DECODES, ALL[0]]), view(FOUR, DECODING, max_resident=8), 8, "plans 5 rows; .* 4"),
    ],
)
def test_no_more_are_admitted_than_limits_and_memory_allow(
    plan: Plan, shown: View, most_rows: int | None, message: str | None
) -> None:
    with pytest.raises(PolicyError, match=message) if message else nullcontext():
        check_plan(plan, shown, most_rows)
    check_plan(Plan([Advance(WAITING, cast(Any, np.int64(2)))]), view([WAITING], [RESIDENT]))


@pytest.mark.parametrize(
    ("retired", "message"),
    [
        (None, "retire returned NoneType, not a list of requests"),
        ([RESIDENT], "retires 2, which is not done"),
        ([DONE, DONE], "retires a request twice"),
        ([STRANGER], "retires 9, which is not resident"),
    ],
)
def test_only_residents_that_are_done_may_retire(retired: Any, message: str) -> None:
    check_retired([DONE], [RESIDENT, DONE])
    with pytest.raises(PolicyError, match=message):
        check_retired(retired, [RESIDENT, DONE])
