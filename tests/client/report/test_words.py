"""The result in sentences says what the records hold, and what they do not show."""

from __future__ import annotations

import numpy as np
import pytest

from client.analysis.metrics import LATENCIES, Objectives
from client.analysis.results import AtSaturation, Bracket, Headline, Pair
from client.analysis.statistics import Interval
from client.analysis.summary import Point
from client.report.words import rate, sentences


def point(name: str, load: float, verdict: str, ttft_s: float) -> Point:
    latencies = {key: np.full(10, ttft_s) for key in LATENCIES}
    return Point(
        contestant=name, load=load, offered=8.0 * load, seeds=(0,), verdict=verdict, reasons=(),
        voids=(), throughput=Interval(100.0, 90.0, 110.0), throughput_ratio=None, e2e_ratio=None,
        ttft_ratio=None, tpot_ratio=None, latencies=latencies,
        latency_n=dict.fromkeys(LATENCIES, 10), ok=10, failed=0, unfinished=0, lag_p99_s=0.0,
        goodput=None, attained=None, batch_mean=None, padding=None, fairness=None,
    )  # fmt: skip


POINTS = [
    point("nobatch", 1.0, "VALID", 0.140), point("dynamic", 1.0, "VALID", 0.019),
    point("nobatch", 8.0, "SATURATED", 3.0), point("dynamic", 8.0, "SATURATED", 1.0),
]  # fmt: skip


def headline(**parts: object) -> Headline:
    empty = {"capacities": (), "saturation": (), "pairs": (), "controls": ()}
    goal = Objectives(ttft_s=0.5, tpot_s=0.05)
    return Headline(objectives=goal, share=0.9, **{**empty, **parts})  # type: ignore[arg-type]


def test_limit_latency_and_capacity_are_told_with_their_numbers() -> None:
    limit = Pair("dynamic", "nobatch", 8.0, Interval(6.0, 5.4, 6.7), None, None, None)
    calm = Pair("dynamic", "nobatch", 1.0, None, Interval(0.14, 0.1, 0.2), None, None)
    found = headline(
        pairs=(limit, calm),
        saturation=(AtSaturation("dynamic", 8.0, Interval(2190.0, 2100.0, 2300.0)),),
        capacities=(Bracket("nobatch", None, 1.0), Bracket("dynamic", 1.0, 8.0)),
    )
    throughput, latency, capacity = sentences(found, POINTS)
    assert (
        "dynamic batching delivered 2,190 output tokens a second, 6 times [5.4, 6.7]" in throughput
    )
    assert "within 19 ms with dynamic batching and within 140 ms with one request" in latency
    assert "no difference is certain" not in latency
    assert capacity == (
        "With TTFT ≤ 500 ms and TPOT ≤ 50 ms for 90% of the requests, dynamic batching sustained "
        "load 1 but not 8; one request at a time did not sustain even load 1."
    )


def test_a_policy_that_is_compared_with_the_default_is_what_the_sentences_are_about() -> None:
    points = [point(n, 1.0, "VALID", 0.019) for n in ("dynamic", "dynamic:mine:Own")]
    pair = Pair("dynamic:mine:Own", "dynamic", 8.0, Interval(1.5, 1.4, 1.6), None, None, None)
    limit = AtSaturation("dynamic:mine:Own", 8.0, Interval(300.0, 290.0, 310.0))
    told = sentences(headline(pairs=(pair,), saturation=(limit,)), points)[0]
    assert told == (
        "At its limit, dynamic batching under mine:Own delivered 300 output tokens a second, 1.5 "
        "times [1.4, 1.6] those of dynamic batching."
    )


def test_a_ratio_that_may_be_one_is_no_difference() -> None:
    pair = Pair("dynamic", "nobatch", 1.0, None, Interval(0.9, 0.7, 1.2), None, None)
    assert "so no difference is certain" in sentences(headline(pairs=(pair,)), POINTS)[1]


def test_a_ratio_of_one_seed_has_no_interval_and_says_so() -> None:
    pair = Pair("dynamic", "nobatch", 1.0, None, Interval(0.065, None, None), None, None)
    latency = sentences(headline(pairs=(pair,)), POINTS)[1]
    assert latency.endswith("0.065 times the wait (one seed, so no interval).")


@pytest.mark.parametrize(
    ("offered", "words"), [(1.0, "1 request a second"), (5.93, "5.93 requests a second")]
)
def test_a_rate_is_in_the_right_number(offered: float, words: str) -> None:
    assert rate(offered) == words


def test_missing_measurements_are_stated_not_guessed() -> None:
    limit, latency, _ = sentences(headline(), POINTS)
    assert limit.startswith("No load brought dynamic batching to its limit")
    assert "dynamic batching keeps up, the median time to the first token was 19 ms" in latency
