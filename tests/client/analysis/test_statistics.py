"""Statistics against tables, closed forms and brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client.analysis.comparison.bootstrap import best_ratio, pooled, pooled_ratio
from client.analysis.statistics import (
    Floats,
    Interval,
    excludes,
    least_n,
    mean_interval,
    paired_ratio,
    percentile,
    percentile_interval,
    ranked,
    slope,
)


def test_a_percentile_needs_as_many_values_as_it_takes_to_see_beyond_it() -> None:
    assert [least_n(p) for p in (50, 90, 95, 99)] == [6, 36, 72, 368]
    assert percentile(np.arange(367.0), 99) is None
    assert percentile(np.arange(1, 401.0), 99) == 396
    assert percentile(np.array([1.0] * 30 + [math.inf] * 20), 50) == 1.0
    assert percentile(np.array([1.0] * 30 + [math.inf] * 20), 90) == math.inf
    for p in (50, 90, 95, 99):
        n = least_n(p)
        few, enough = (percentile_interval(np.arange(float(k)), p) for k in (n - 1, n))
        assert few is not None
        assert enough is not None
        assert (few.high, enough.high) == (None, n - 1), "open above where n is too small for it"
    assert percentile_interval(np.array([3.0]), 50) == Interval(3.0, None, None)
    assert percentile_interval(np.zeros(0), 50) is None


def test_intervals_are_those_of_scipy() -> None:
    values, x = np.random.default_rng(1).normal(3.0, 2.0, 400), np.arange(400.0)
    half = stats.t.ppf(0.975, 398) * (fit := stats.linregress(x, values)).stderr
    pairs: list[tuple[Any, Any]] = [
        (mean_interval(x[:6].tolist()), stats.t.interval(0.95, 5, 2.5, stats.sem(x[:6]))),
        (
            mean_interval(x[:6].tolist(), skewed=True),
            stats.t.interval(0.95, 4, 2.5, stats.sem(x[:6])),
        ),
        (slope(x, values), (fit.slope - half, fit.slope + half)),
    ]
    for p in (50, 90, 99):
        limits = stats.quantile_test(values, p=p / 100).confidence_interval(0.95)
        pairs.append((percentile_interval(values, p), limits))
    for ours, theirs in pairs:
        assert (ours.low, ours.high) == pytest.approx(tuple(theirs))


def test_a_share_is_excluded_when_it_would_be_a_surprise_and_not_before() -> None:
    assert excludes(200, 200, 0.9)
    assert not excludes(176, 200, 0.9), "88 % of 200 may be 90 %"
    assert excludes(880, 1000, 0.9), "of 1,000 it is not"
    wilson = stats.binomtest(176, 200).proportion_ci(0.95, "wilson")
    for edge, outwards in ((wilson.low, -1e-6), (wilson.high, 1e-6)):
        assert excludes(176, 200, edge + outwards)
        assert not excludes(176, 200, edge - outwards)


def test_pairing_takes_out_what_both_sides_share() -> None:
    rng = np.random.default_rng(2)
    shared = rng.lognormal(0, 1, 5)
    a = (2 * shared * rng.lognormal(0, 0.01, 5)).tolist()
    found = paired_ratio(a, shared.tolist())
    assert found is not None
    assert 1.9 < (found.low or 0.0) < 2.0 < (found.high or 0.0) < 2.1
    assert paired_ratio([1.0, math.inf], [1.0, 1.0]) is None
    assert paired_ratio([1.0], [0.0]) is None
    assert paired_ratio([], []) is None


def test_intervals_of_latencies_hold_the_truth_although_these_are_skewed() -> None:
    """Medians of waits that a common load makes long for both sides."""
    rng, hits = np.random.default_rng(20), 0
    for _ in range(1000):
        load = rng.lognormal(0, 0.5, (6, 1))
        a, b = (np.median(load * rng.exponential(mean, (6, 9)), axis=1) for mean in (1.0, 2.0))
        hits += inside(paired_ratio(b.tolist(), a.tolist(), skewed=True), 2.0)
    assert 0.92 <= hits / 1000 <= 0.98


def inside(interval: Interval | None, truth: float) -> bool:
    assert interval is not None
    return (interval.low or 0.0) <= truth <= (interval.high or math.inf)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([2.0], [1.0]), ([2.0, 1.4], [1.0, 0.6]), ([2.0], [1.0, 1.0, 1.0]), ([2.0, 1.9], [1.0])],
    ids=["one load each", "clear", "equal loads of the base", "nearly equal loads"],
)
def test_the_ratio_of_the_best_covers_the_truth_however_close_the_loads_are(
    ours: list[float], theirs: list[float]
) -> None:
    rng = np.random.default_rng(8)

    def rows(truths: list[float], drift: Floats) -> Floats:
        noise = rng.normal(0, 0.1, (len(truths), 6)) + drift
        return np.array(truths)[:, None] * np.exp(noise)

    hits = 0
    for _ in range(400):
        drift = rng.normal(0, 0.2, 6)  # of the machine from seed to seed
        hits += inside(best_ratio(rows(ours, drift), rows(theirs, drift)), 2.0)
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize("rank", [50, 90, 99])
def test_a_pooled_percentile_is_that_of_the_blocks_as_often_as_they_were_drawn(rank: int) -> None:
    rng = np.random.default_rng(0)
    values = [rng.exponential(size=n) for n in (30, 200, 77)]
    counts = np.array([[1, 1, 1], [3, 0, 0], [0, 2, 1], [0, 0, 3]])
    found = pooled(values, counts, rank)
    for row, figure in zip(counts, found, strict=True):
        together = np.concatenate([np.tile(v, times) for v, times in zip(values, row, strict=True)])
        assert figure == ranked(together, rank)


def test_the_error_is_that_of_scipys_bootstrap_over_blocks() -> None:
    rng = np.random.default_rng(3)
    blocks = [rng.exponential(k + 1, 40) for k in range(6)]
    effect = pooled_ratio(blocks, [np.ones(40)] * 6, 90, samples=2000)
    theirs = stats.bootstrap(
        (np.arange(6),), lambda k: np.log(ranked(np.array(blocks)[k].ravel(), 90) or 0.0),
        vectorized=False, n_resamples=2000, method="percentile", rng=rng,
    )  # fmt: skip
    assert effect is not None
    assert effect.error == pytest.approx(theirs.standard_error * (6 / 5) ** 0.5, rel=0.08)
