"""Skip-join multilevel feedback queue: levels by what a request brings and by what it has used."""

from __future__ import annotations

import pytest

from scheduling.policies.orders.mlfq import MLFQ
from scheduling.registry import make_policy
from seams import Observer, Plan, Policy, Served
from serving.config import Config
from tests.scheduling.shown import Shown, view

CONFIG = Config(mode="dynamic", policy="mlfq", max_batch_size=1)


def policy() -> Policy:
    return make_policy("mlfq", CONFIG)


def plan(by: Policy, waiting: list[Shown], resident: list[Shown]) -> Plan:
    """Of one row, where four requests may be resident."""
    return by.plan(view(waiting, resident, limit=1, max_resident=4))


def runs(decided: Plan) -> list[int]:
    return [step.request.id for step in decided.advance]


@pytest.mark.parametrize(
    ("prompt_tokens", "level"), [(1, 0), (31, 0), (32, 1), (63, 1), (64, 2), (127, 2), (128, 3)]
)
def test_a_request_joins_the_first_level_whose_quantum_is_above_its_prompt(
    prompt_tokens: int, level: int
) -> None:
    assert MLFQ().group(Shown(1, prompt_tokens=prompt_tokens)) == level


def test_a_later_request_with_a_shorter_prompt_skips_a_longer_one_and_equals_go_by_arrival() -> (
    None
):
    assert runs(plan(policy(), [Shown(1, prompt_tokens=70), Shown(2, prompt_tokens=9)], [])) == [2]
    assert runs(plan(policy(), [Shown(1, prompt_tokens=20), Shown(2, prompt_tokens=9)], [])) == [1]


@pytest.mark.parametrize(
    ("prompt_tokens", "used", "level"),
    [
        *((4, used, level) for used, level in ((31, 0), (32, 1), (95, 1), (96, 2), (223, 2))),
        *((40, used, level) for used, level in ((63, 1), (64, 2), (191, 2), (192, 3))),
    ],
)
def test_a_request_sinks_a_level_whenever_it_has_used_the_quantum_of_its_level(
    prompt_tokens: int, used: int, level: int
) -> None:
    """Quanta are 32, 64, 128 tokens and so on, from the level where it joined."""
    request = Shown(1, prompt_tokens=prompt_tokens)
    at_once, one_by_one = MLFQ(), MLFQ()
    at_once.observe([Served(request, used, 1)])
    for _ in range(used):
        one_by_one.observe([Served(request, 1, 1)])
    assert at_once.group(request) == one_by_one.group(request) == level


def test_what_is_done_is_forgotten() -> None:
    order = MLFQ()
    order.observe([Served(Shown(1), 40, 1)])
    order.observe([Served(Shown(1, done=True), 1, 1)])
    assert order.group(Shown(1)) == 0


def test_a_resident_that_has_used_its_quantum_pauses_for_a_newcomer_and_keeps_its_memory() -> None:
    by = policy()
    assert isinstance(by, Observer)
    resident = Shown(1, computed=34, generated=31, max_tokens=60)
    newcomer = Shown(2, prompt_tokens=30)
    by.observe([Served(resident, 31, 1)])
    assert runs(plan(by, [newcomer], [resident])) == [1]
    by.observe([Served(resident, 1, 1)])
    decided = plan(by, [newcomer], [resident])
    assert runs(decided) == [2]
    assert list(decided.preempt) == []
