"""Hostile clients beside one stream: it continues, and each of them is answered."""

from __future__ import annotations

from benchmarks.hostile import __main__ as neighbours


def test_a_neighbour_goes_on_beside_clients_whose_bodies_nobody_reads() -> None:
    ((found, answers),) = neighbours.measure(["router"], ["unread bodies"], rounds=1, seconds=1.0)
    assert not answers["alone"]
    assert {status[0] for status in answers["unread bodies"]} == {"4"}
    assert found.figures("unread bodies")[0] > 1
