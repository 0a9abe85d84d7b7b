"""Hostile constraints beside 32 streams: each is refused or served, and no stream notices more than
its latency. Hostile clients beside one stream: it continues, and each of them is answered."""

from __future__ import annotations

import pytest

from benchmarks.harness.turns import ratio_of
from benchmarks.hostile import __main__ as neighbours
from benchmarks.hostile.constraints import costly, hostile
from benchmarks.hostile.grammars import COSTLY, HOSTILE, measure


def test_no_two_hostile_constraints_are_alike() -> None:
    constraints = [*map(hostile, range(HOSTILE)), *map(costly, range(COSTLY))]
    assert len(set(constraints)) == HOSTILE + COSTLY


@pytest.mark.long
def test_streams_beside_hostile_constraints_end_as_they_should() -> None:
    compiling, masking = measure("embedded", "float32", rounds=1, tokens=60)
    for found in (compiling, masking):
        (beside,), (ordinary,) = found.turns.values()
        assert beside.served + beside.failed <= HOSTILE
        assert ordinary.failed == 0
        assert ratio_of(found, "hostile").value > 0
    (beside,) = masking.turns["hostile"]
    assert beside.served + beside.failed == COSTLY


def test_a_neighbour_goes_on_beside_clients_whose_bodies_nobody_reads() -> None:
    ((found, answers),) = neighbours.measure(["router"], ["unread bodies"], rounds=1, seconds=1.0)
    assert not answers["alone"]
    assert {status[0] for status in answers["unread bodies"]} == {"4"}
    assert found.figures("unread bodies")[0] > 1
