"""Figures of `/stats` against closed forms and plain recomputation from the records."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seams import IterationRecord, RequestRecord
from telemetry.stats import ITERATIONS_KEPT, REQUESTS_KEPT, Stats

REQUEST = RequestRecord(10.0, 11.0, 12.0, 16.0, 16.0, 4, 5, 5, 0, "immediate", "length")
ITERATION = IterationRecord(
    start_s=11.0, duration_s=0.5, batch_size=2, num_tokens=6, num_positions=8, num_generated=2
)


def summary(
    stats: Stats, now_s: float = 100.0, busy_since_s: float | None = None
) -> dict[str, Any]:
    queue: Any = SimpleNamespace(busy_since_s=busy_since_s, counts={}, pending=0)
    return dict(stats.summary(now_s, queue))


@pytest.mark.parametrize(
    ("reset_s", "ended", "now_s", "since_s", "elapsed_s"),
    [
        (None, True, 23.0, 20.0, 7.0),  # the present busy period, as far as it has come
        (None, True, 14.0, 10.0, 4.0),  # the reader saw it open before its end was recorded
        (12.0, False, 13.0, 10.0, 1.0),  # across a reset it counts from there on
        (12.0, True, 100.0, None, 2.0),
    ],
)
def test_busy_periods_count_once_as_far_as_they_have_come_and_from_a_reset_on(
    reset_s: float | None, ended: bool, now_s: float, since_s: float | None, elapsed_s: float
) -> None:
    stats = Stats(0.0)
    if reset_s is not None:
        stats.reset(reset_s)
    if ended:
        stats.busy(10.0, 14.0)
    assert summary(stats, now_s, since_s)["total-elapsed-time"] == elapsed_s


ITERATIONS = st.builds(
    IterationRecord,
    start_s=st.floats(0, 100),
    duration_s=st.floats(0, 1),
    batch_size=st.integers(1, 64),
    num_tokens=st.integers(1, 500),
    num_positions=st.integers(500, 900),
    num_generated=st.integers(0, 64),
)


@given(st.lists(ITERATIONS, min_size=1, max_size=60))
def test_figures_of_a_window_equal_a_plain_recomputation(records: list[IterationRecord]) -> None:
    stats = Stats(0.0)
    for reset_s in (0.0, 100.0):
        stats.reset(reset_s)
        assert summary(stats) == {**summary(Stats(0.0)), "since": ANY}
        stats.request(REQUEST)
        for record in records:
            stats.iteration(record)
        stats.busy(0.0, 200.0)
    told = summary(stats)
    rows = [r.batch_size for r in records]
    positions, tokens = sum(r.num_positions for r in records), sum(r.num_tokens for r in records)
    assert told["batch-size"]["mean"] == pytest.approx(statistics.mean(rows))
    assert told["batch-size"]["max"] == max(rows)
    assert told["batch-size"]["histogram"] == {
        str(n): len(list(group)) for n, group in itertools.groupby(sorted(rows))
    }
    assert told["padding-share"] == pytest.approx(1 - tokens / positions)
    assert told["model-share"] == pytest.approx(sum(r.duration_s for r in records) / 100)
    assert told["total-tokens-handled"] == sum(r.num_generated for r in records)
    assert told["throughput"] == told["total-tokens-handled"] / 100
    assert stats.iterations()["iterations"] == [
        [r.start_s - 100, r.duration_s, r.batch_size, r.num_tokens, r.padding] for r in records
    ]


def test_percentiles_interpolate_and_a_single_token_has_no_time_per_output_token() -> None:
    stats = Stats(0.0)
    for latency_s in range(101):  # of which the first 31 are for up to ten tokens
        max_tokens = 1 + latency_s // 31 * 10
        stats.request(replace(REQUEST, max_tokens=max_tokens, end_s=10.0 + latency_s))
    told = summary(stats)
    assert told["e2e-s"] == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "n": 101}
    buckets = told["latency-by-num-tokens"]
    assert [(b["num_tokens"], b["n"], b["mean_s"]) for b in buckets] == [
        (10, 31, 15.0), (20, 31, 46.0), (30, 31, 77.0), (40, 8, 96.5),
    ]  # fmt: skip
    assert [replace(REQUEST, generated=n).tpot_s for n in (1, 2)] == [None, 4.0]


def test_memory_is_bounded_and_totals_stay_exact() -> None:
    stats = Stats(0.0)
    for i in range(ITERATIONS_KEPT + 500):
        stats.iteration(replace(ITERATION, start_s=float(i)))
    for i in range(REQUESTS_KEPT + 500):
        stats.request(replace(REQUEST, end_s=REQUEST.arrival_s + i))
    told, kept = summary(stats), stats.iterations()
    assert told["total-tokens-handled"] == 2 * (ITERATIONS_KEPT + 500)
    assert told["counts"]["completed"] == REQUESTS_KEPT + 500
    assert told["e2e-s"]["n"] == REQUESTS_KEPT
    assert told["e2e-s"]["p50"] == 500 + (REQUESTS_KEPT - 1) / 2  # the newest
    assert kept["dropped"] == 500
    assert kept["iterations"][0][0] == 500.0
    assert len(kept["iterations"]) == ITERATIONS_KEPT


def test_ends_are_counted_by_class_and_only_completed_requests_have_latencies() -> None:
    stats = Stats(0.0)
    stats.request(REQUEST)
    late = replace(REQUEST, service_class="deferred", end_s=20.0, num_preemptions=2)
    stats.request(late)
    stats.request(replace(late, end="cancelled"))
    stats.request(replace(REQUEST, end="failed", admitted_s=None, first_token_s=None, generated=0))
    stats.count_rejected()
    stats.iteration(ITERATION)
    stats.iteration(replace(ITERATION, deferred_tokens=3, deferred_generated=1))
    told = summary(stats)
    counts = told["counts"]
    assert (counts["completed"], counts["failed"], counts["cancelled"]) == (2, 1, 1)
    assert (counts["received"], counts["rejected"], told["e2e-s"]["n"]) == (1, 1, 2)
    immediate, deferred = told["by-class"]["immediate"], told["by-class"]["deferred"]
    assert [immediate[k] for k in ("completed", "failed", "cancelled")] == [1, 1, 0]
    assert [deferred[k] for k in ("completed", "failed", "cancelled")] == [1, 0, 1]
    assert (immediate["e2e-s"]["p50"], deferred["e2e-s"]["p50"]) == (6.0, 10.0)
    assert [deferred[f"{of}-s"]["p50"] for of in ("queue", "ttft", "tpot")] == [1.0, 2.0, 2.0]
    assert told["latency-per-token"] == 16.0 / (5 + 5)
    assert told["preemptions"] == 4
    assert told["deferred-tokens"] == {"computed": 3, "generated": 1}
