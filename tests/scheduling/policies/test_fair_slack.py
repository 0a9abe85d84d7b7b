"""The slack of decodes pays for prompts: who is planned first, and for how long."""

from __future__ import annotations

import pytest

from scheduling.policies.fair_slack import FairSlack
from scheduling.policies.stall_free import StallFree
from scheduling.prediction.step_time import Work
from seams import Advance, Plan
from tests.scheduling.law import Law
from tests.scheduling.shown import Shown, view

NOW_S = 100.0
TTFT_S, TPOT_S = 1.0, 0.1  # the defaults
LAW = Law()


def decode(id: int, slack_s: float, own: bool = False) -> Shown:
    """Its next token is due so many seconds from now. `own`: it has targets of its own."""
    ttft_s, tpot_s = (3.0, 0.5) if own else (TTFT_S, TPOT_S)
    arrival_s = NOW_S + slack_s - ttft_s - 2 * tpot_s
    told = {"ttft_target_s": ttft_s, "tpot_target_s": tpot_s} if own else {}
    return Shown(id, arrival_s, generated=2, computed=5, max_tokens=99, **told)  # type: ignore[arg-type]


def prompt(tokens: int, id: int = 50) -> Shown:
    return Shown(id, NOW_S, prompt_tokens=tokens)


def planned(waiting: list[Shown], resident: list[Shown], law: Law = LAW) -> Plan:
    shown = view(waiting, resident, now_s=NOW_S, limit=12, budget=20_000)
    return FairSlack(predictor=law).plan(shown)


def ids(plan: Plan) -> list[int]:
    return [step.request.id for step in plan.advance]


def test_decodes_that_would_be_late_are_first_then_prompts_then_the_others_by_slack() -> None:
    residents = [
        decode(1, 0.6),
        decode(2, 0.5, own=True),
        decode(3, 0.015),
        decode(4, 0.010, own=True),
    ]
    plan = planned([prompt(100)], residents)
    assert ids(plan) == [4, 3, 50, 2, 1]
    assert [step.num_tokens for step in plan.advance] == [1, 1, 100, 1, 1]
    # a long prompt takes all time until the first decode is due from those that can wait
    plan = planned([prompt(8000)], residents)
    assert ids(plan) == [4, 3, 50]
    decodes, chunk = plan.advance[:2], plan.advance[2]
    longer = Advance(chunk.request, chunk.num_tokens + 1)
    taken_s = [LAW.seconds(Work.of([*decodes, one])) or 0.0 for one in (chunk, longer)]
    assert taken_s[0] <= 0.010 < taken_s[1]


@pytest.mark.parametrize(
    ("waiting", "residents", "law"),
    [
        ([prompt(8000)], [decode(1, -0.1), decode(2, -0.2)], LAW),
        ([prompt(8000)], [decode(1, 0.6), decode(2, 0.010)], Law(known=False)),
        ([prompt(8000)], [], LAW),
        ([], [decode(1, 0.6), decode(2, 0.010)], LAW),
    ],
    ids=["all are late", "nothing is learnt", "no request decodes", "no prompt"],
)
def test_where_there_is_no_slack_to_spend_it_is_stall_free(
    waiting: list[Shown], residents: list[Shown], law: Law
) -> None:
    shown = view(waiting, residents, now_s=NOW_S, limit=12, budget=20_000)
    plan = planned(waiting, residents, law)
    assert plan == StallFree(predictor=law).plan(shown)
    assert ids(plan) == [request.id for request in (*residents, *waiting)]
