"""The result in sentences says what the records hold, and what they do not show."""

from __future__ import annotations

import numpy as np

from client.analysis.comparison.results import Bracket, Headline, LimitRatio, Pair, Peak
from client.analysis.comparison.summary import Point
from client.analysis.figures import LATENCIES
from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval
from client.report.sentences import sentences
from client.report.tables import limit_table
from client.report.words import times


def point(name: str, load: float, verdict: str, ttft_s: float) -> Point:
    latencies = {figure.key: np.full(10, ttft_s) for figure in LATENCIES}
    return Point(
        system=name, load=load, offered=8.0 * load, runs={}, verdict=verdict, reasons=(),
        voids=(), throughput=Interval(100.0, 90.0, 110.0), latencies=latencies,
        ok=10, failed=0, unfinished=0, lag_p99_s=0.0, goodput=None,
        attained=None, batch=None, padding=None,
    )  # fmt: skip


POINTS = [
    point("nobatch", 1.0, "VALID", 0.140), point("dynamic", 1.0, "VALID", 0.019),
    point("nobatch", 8.0, "SATURATED", 3.0), point("dynamic", 8.0, "SATURATED", 1.0),
]  # fmt: skip


def headline(**parts: object) -> Headline:
    empty = {"capacities": (), "limits": (), "limit_ratios": (), "pairs": (), "controls": ()}
    goal = Objectives(ttft_s=0.5, tpot_s=0.05)
    return Headline(objectives=goal, share=0.9, **{**empty, **parts})  # type: ignore[arg-type]


def limit(name: str, load: float, tokens_per_s: float) -> Peak:
    return Peak(name, load, Interval(tokens_per_s, None, None), 70, 8.0)


def test_limit_latency_and_capacity_are_told_with_their_numbers() -> None:
    calm = Pair("dynamic", "nobatch", 1.0, {"ttft": Interval(0.14, 0.1, 0.2)})
    found = headline(
        pairs=(calm,),
        limits=(limit("nobatch", 2.7, 365.0), limit("dynamic", 8.0, 2190.0)),
        limit_ratios=(LimitRatio("dynamic", "nobatch", Interval(6.0, 5.4, 6.7)),),
        capacities=(Bracket("nobatch", None, 1.0), Bracket("dynamic", 1.0, 8.0)),
    )
    throughput, latency, capacity = sentences(found, POINTS, {})
    assert "load 8), dynamic batching delivered 2,190 output tokens a second" in throughput
    assert "6.0 times [5.4, 6.7] those of one request at a time (load 2.7)" in throughput
    (row,) = (row for row in limit_table(found).rows if row[0] == "dynamic")
    assert row[1:] == ("8", "2,190", "70", "8 s", "6.00 [5.40, 6.70]")
    assert "within 19 ms (10 requests) with dynamic batching and within 140 ms (10" in latency
    assert "no difference is certain" not in latency
    assert "TTFT ≤ 500 ms and TPOT ≤ 50 ms for 90%" in capacity
    assert "dynamic batching sustained load 1 but not 8" in capacity
    assert "one request at a time did not sustain even load 1" in capacity


def test_a_narrow_interval_gets_a_digit_more() -> None:
    assert times(Interval(1.312, 1.298, 1.326)) == "1.31 times [1.30, 1.33]"
    assert times(Interval(1.3, 1.1, 1.5)) == "1.3 times [1.1, 1.5]"
    assert times(Interval(14.2, 13.9, 14.4)) == "14.2 times [13.9, 14.4]"
