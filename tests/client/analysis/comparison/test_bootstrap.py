"""Pooled ratios: the figure of all blocks together, and an interval that covers the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from client.analysis.comparison.bootstrap import pooled, pooled_ratio
from client.analysis.statistics import ranked


@pytest.mark.parametrize("rank", [50, 90, 99])
def test_a_pooled_percentile_is_that_of_the_blocks_as_often_as_they_were_drawn(rank: int) -> None:
    rng = np.random.default_rng(0)
    values = [rng.exponential(size=n) for n in (30, 200, 77)]
    counts = np.array([[1, 1, 1], [3, 0, 0], [0, 2, 1], [0, 0, 3]])
    found = pooled(values, counts, rank)
    for row, figure in zip(counts, found, strict=True):
        together = np.concatenate([np.tile(v, times) for v, times in zip(values, row, strict=True)])
        assert figure == ranked(together, rank)


def test_a_pooled_mean_weighs_blocks_by_their_values() -> None:
    values = [np.array([1.0, 1.0, 1.0]), np.array([5.0])]
    assert pooled(values, np.array([[1, 1], [0, 2]]), None).tolist() == [2.0, 5.0]


def test_what_both_sides_share_cancels() -> None:
    rng = np.random.default_rng(1)
    base = [rng.exponential(10.0**k, 50) for k in range(6)]
    effect = pooled_ratio([1.3 * b for b in base], base, 99)
    assert effect is not None
    assert effect.interval.value == pytest.approx(1.3)
    assert effect.error == pytest.approx(0, abs=1e-9)


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


def test_there_is_no_ratio_of_one_block_of_nothing_or_of_what_never_ended() -> None:
    one = np.array([1.0, 2.0])
    assert pooled_ratio([one], [one], None) is None
    assert pooled_ratio([one, np.zeros(0)], [one, one], None) is None
    assert pooled_ratio([one, np.array([np.inf])], [one, one], 99) is None
    assert pooled_ratio([one, one], [0 * one, 0 * one], None) is None
