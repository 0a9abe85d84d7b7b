"""Least attained service of the program, in levels that double."""

from __future__ import annotations

import pytest

from scheduling.policies.orders.program import Program
from seams import Served
from tests.scheduling.shown import Shown, view


def order_of(order: Program, *waiting: Shown) -> list[int]:
    return [request.id for request in order.first(view(waiting), len(waiting))]


def served(tokens: int, *, program: int | None = 1) -> Program:
    order = Program()
    order.observe([Served(Shown(1, program=program), tokens, 1)])
    return order


def test_the_call_of_a_program_that_had_much_waits_for_one_that_had_little() -> None:
    much, little = Shown(2, program=1), Shown(3, program=2)
    assert order_of(Program(), much, little) == [2, 3]
    assert order_of(served(64), much, little) == [3, 2]


@pytest.mark.parametrize(
    ("tokens", "level"), [(0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (255, 2), (256, 3)]
)
def test_levels_double(tokens: int, level: int) -> None:
    assert served(tokens).group_rank((1, 1)) == level


def test_programs_of_the_same_level_run_in_order_of_arrival() -> None:
    order = served(200)
    order.observe([Served(Shown(2, program=2), 130, 1)])
    assert order_of(order, Shown(3, program=1), Shown(4, program=2)) == [3, 4]


def test_all_calls_of_a_program_count_together_and_those_without_a_program_alone() -> None:
    order = Program()
    for id in (1, 2):
        order.observe([Served(Shown(id, program=4), 40, 1), Served(Shown(id + 10), 40, 1)])
    assert order_of(order, Shown(3, program=4), Shown(4)) == [4, 3]  # numbers apart, too
    assert order.group_rank(order.group(Shown(11))) == 0


def test_a_request_without_a_program_sinks_by_its_own_service_until_it_is_done() -> None:
    order = served(64, program=None)
    assert order.group_rank(order.group(Shown(1))) == 1
    order.observe([Served(Shown(1, done=True), 1, 1)])
    assert order.group_rank(order.group(Shown(1))) == 0
