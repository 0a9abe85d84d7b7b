"""Hostile constraints beside 32 streams: each is refused or served, and no stream notices more than
its latency. Hostile clients beside one stream: it continues, and each of them is answered."""

from __future__ import annotations

import pytest

from benchmarks.constraints import costly, hostile
from benchmarks.hostile import __main__ as neighbours
from benchmarks.hostile.grammars import COSTLY, HOSTILE, STREAMS, card, measure


def test_no_two_hostile_constraints_are_alike() -> None:
    constraints = [*map(hostile, range(HOSTILE)), *map(costly, range(COSTLY))]
    assert len(set(constraints)) == HOSTILE + COSTLY


@pytest.mark.long
def test_streams_beside_hostile_constraints_end_as_they_should() -> None:
    compiling, masking = measure("embedded", "float32", rounds=1, tokens=60)
    for beside, ordinary, p99 in (compiling, masking):
        assert beside.served + beside.failed <= HOSTILE
        assert ordinary.failed == 0
        assert p99.value > 0
    assert masking[0].served + masking[0].failed == COSTLY
    assert STREAMS == 32
    assert "costly masks" in card([compiling, masking])


def test_a_neighbour_goes_on_beside_clients_whose_bodies_nobody_reads() -> None:
    alone, beside = neighbours.measure(["router"], ["unread bodies"], rounds=1, seconds=1.0)
    assert not alone.answers
    assert {status[0] for status in beside.answers} == {"4"}
    assert beside.to_alone.value > 0
    assert "unread bodies" in neighbours.card([alone, beside], 1.0)
