"""Figures of `/stats` against closed forms and plain recomputation from the records."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import IterationRecord, RequestRecord
from telemetry.durations import tpot_s
from telemetry.machine import describe_machine
from telemetry.stats import ITERATIONS_KEPT, REQUESTS_KEPT, Stats


@dataclass
class Queue:
    busy_since_s: float | None = None
    counts: dict[str, int] = field(default_factory=lambda: {"waiting": 0, "running": 0})
    pending: int = 0


IDLE = Queue()
REQUEST = RequestRecord(10.0, 11.0, 12.0, 16.0, 16.0, 4, 5, 5, 0, "immediate", "length")
ITERATION = IterationRecord(
    start_s=11.0, duration_s=0.5, batch_size=2, num_tokens=6, num_positions=8, num_generated=2
)


def summary(stats: Stats, now_s: float = 100.0, queue: Queue = IDLE) -> dict[str, Any]:
    return dict(stats.summary(now_s, queue))


def test_one_request_appears_as_it_was() -> None:
    stats = Stats(0.0)
    stats.count_received()
    stats.request(REQUEST)
    told = summary(stats)
    assert told["queue-s"] == {"p50": 1.0, "p90": 1.0, "p99": 1.0, "n": 1}
    assert told["ttft-s"]["p50"] == 2.0
    assert told["tpot-s"]["p50"] == 1.0
    assert told["e2e-s"]["p50"] == 6.0
    assert told["latency-per-token"] == 6.0 / 5
    assert told["latency-by-num-tokens"] == [
        {"num_tokens": 10, "n": 1, "mean_s": 6.0, "p90_s": 6.0}
    ]
    assert told["counts"]["received"] == told["counts"]["completed"] == 1


def test_an_empty_history_gives_an_empty_frame() -> None:
    told = summary(Stats(0.0))
    for key in ("throughput", "latency-per-token", "padding-share", "model-share"):
        assert told[key] is None
    assert told["batch-size"] == {"mean": None, "max": 0, "histogram": {}}
    assert told["e2e-s"] == {"p50": None, "p90": None, "p99": None, "n": 0}
    assert told["total-tokens-handled"] == told["total-elapsed-time"] == 0


def test_throughput_is_tokens_by_busy_wall_clock_not_by_summed_latencies() -> None:
    """Eight requests side by side for four seconds, then a pause that does not count."""
    stats = Stats(0.0)
    for _ in range(8):
        stats.request(replace(REQUEST, arrival_s=10.0, end_s=14.0, generated=5))
    for _ in range(5):
        stats.iteration(replace(ITERATION, num_generated=8))
    stats.busy(10.0, 14.0)
    told = summary(stats)
    assert told["throughput"] == 40 / 4.0
    assert told["total-elapsed-time"] == 4.0


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
    assert summary(stats, now_s, Queue(busy_since_s=since_s))["total-elapsed-time"] == elapsed_s


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), max_size=20))
def test_overlapping_busy_periods_count_once(periods: list[tuple[float, float]]) -> None:
    """Ends come in order, as the loop's clock gives them; starts reach back to arrivals."""
    stats = Stats(0.0)
    ends = sorted(start + length for start, length in periods)
    pairs = [(min(start, end), end) for (start, _), end in zip(periods, ends, strict=True)]
    for start_s, end_s in pairs:
        stats.busy(start_s, end_s)
    covered, until = 0.0, 0.0
    for start_s, end_s in pairs:
        covered += max(0.0, end_s - max(start_s, until))
        until = end_s
    assert summary(stats)["total-elapsed-time"] == pytest.approx(covered)
    assert covered <= max(ends, default=0.0) + 1e-9


def test_only_completed_requests_have_latencies() -> None:
    stats = Stats(0.0)
    for end in ("length", "stop", "failed", "cancelled"):
        record = replace(REQUEST, end=end)
        if end in ("failed", "cancelled"):
            record = replace(record, admitted_s=None, first_token_s=None, generated=0)
        stats.request(record)
    stats.count_rejected()
    told = summary(stats)
    counts = told["counts"]
    assert (counts["completed"], counts["failed"], counts["cancelled"]) == (2, 1, 1)
    assert (counts["received"], counts["rejected"]) == (1, 1)
    assert told["e2e-s"]["n"] == 2


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
def test_iteration_figures_equal_a_plain_recomputation(records: list[IterationRecord]) -> None:
    stats = Stats(0.0)
    for record in records:
        stats.iteration(record)
    stats.busy(0.0, 100.0)
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
    assert stats.iterations()["iterations"] == [
        [r.start_s, r.duration_s, r.batch_size, r.num_tokens, r.padding] for r in records
    ]


@given(st.lists(st.tuples(st.integers(1, 95), st.floats(0.1, 50)), min_size=1, max_size=50))
def test_buckets_hold_every_request_once(requests: list[tuple[int, float]]) -> None:
    stats = Stats(0.0)
    for max_tokens, latency_s in requests:
        stats.request(replace(REQUEST, max_tokens=max_tokens, end_s=REQUEST.arrival_s + latency_s))
    buckets = summary(stats)["latency-by-num-tokens"]
    assert sum(bucket["n"] for bucket in buckets) == len(requests)
    for bucket in buckets:
        last = bucket["num_tokens"]
        latencies = [s for n, s in requests if last - 10 < n <= last]
        assert bucket["n"] == len(latencies)
        assert bucket["mean_s"] == pytest.approx(statistics.mean(latencies))


def test_percentiles_interpolate_and_a_single_token_has_no_time_per_output_token() -> None:
    stats = Stats(0.0)
    for latency_s in range(101):
        stats.request(replace(REQUEST, end_s=REQUEST.arrival_s + latency_s))
    assert summary(stats)["e2e-s"] == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "n": 101}
    assert [tpot_s(replace(REQUEST, generated=n)) for n in (1, 2)] == [None, 4.0]


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


def test_the_classes_are_counted_separately_and_so_are_deferred_tokens() -> None:
    stats = Stats(0.0)
    stats.request(REQUEST)
    late = replace(REQUEST, service_class="deferred", end_s=20.0, num_preemptions=2)
    stats.request(late)
    stats.request(replace(late, end="cancelled"))
    stats.iteration(ITERATION)
    stats.iteration(replace(ITERATION, deferred_tokens=3, deferred_generated=1))
    told = summary(stats)
    immediate, deferred = told["by-class"]["immediate"], told["by-class"]["deferred"]
    assert [immediate[k] for k in ("completed", "failed", "cancelled")] == [1, 0, 0]
    assert [deferred[k] for k in ("completed", "failed", "cancelled")] == [1, 0, 1]
    assert (immediate["e2e-s"]["p50"], deferred["e2e-s"]["p50"]) == (6.0, 10.0)
    assert deferred["ttft-s"]["n"] == 1
    assert told["preemptions"] == 4
    assert told["deferred-tokens"] == {"computed": 3, "generated": 1}


def test_a_reset_forgets() -> None:
    stats = Stats(0.0)
    stats.iteration(ITERATION)
    stats.request(REQUEST)
    stats.busy(10.0, 16.0)
    stats.reset(20.0)
    fresh = Stats(20.0)
    told, expected = summary(stats), summary(fresh)
    told.pop("since")
    expected.pop("since")
    assert told == expected


def test_the_machine_is_described_without_loading_torch() -> None:
    machine = describe_machine("cpu")
    assert machine["gpu"] is None
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["cpu"]
    assert describe_machine("NVIDIA H200")["gpu"] == "NVIDIA H200"
