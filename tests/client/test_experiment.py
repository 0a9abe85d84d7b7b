"""Sides take turns at the same work, and an experiment ends when it is certain enough."""

from __future__ import annotations

from client.experiment import Experiment


def test_sides_take_turns_in_reverse_order_at_the_work_of_their_round() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str, work: int) -> int:
        order.append((name, work))
        return len(order)

    sides = {name: (lambda work, name=name: side(name, work)) for name in "ab"}
    found = Experiment(sides, {"turn": float}, "a", lambda number: 10 * number).run(3)
    assert order == [("a", 0), ("b", 0), ("b", 10), ("a", 10), ("a", 20), ("b", 20)]
    assert (found.figures("a"), found.figures("b")) == ([1, 4, 5], [2, 3, 6])


def test_an_experiment_ends_once_it_has_seen_enough() -> None:
    sides = {"a": lambda _: 1.0, "b": lambda _: 2.0}
    found = Experiment(sides, {"s": float}, "a").run(9, enough=lambda f: len(f.turns["b"]) == 2)
    assert found.figures("b") == [2.0, 2.0]
