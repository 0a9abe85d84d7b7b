"""Verdicts on synthetic runs: a baseline against itself is rarely seen, an effect nearly always."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from client.claims.verdict import (
    LEAST_EVENTS,
    MOST_FALSE,
    NOT_SEEN,
    SEEN,
    TOO_CLOSE,
    Block,
    doubted,
    false_alarms,
    find,
)

EXPERIMENTS = 250
SEEDS, REQUESTS = 6, 80


def experiments(rng: np.random.Generator, factor: float = 1.0) -> Iterator[list[Block]]:
    """Latencies of six seeds: each workload is harder or easier for all, each run has the machine's
    own noise, and requests are log-normal. The policy's are multiplied by ``factor``."""
    for _ in range(EXPERIMENTS):
        blocks = []
        for _ in range(SEEDS):
            hard = rng.normal(0, 0.4)
            runs = [
                np.exp(hard + rng.normal(0, 0.08) + rng.normal(0, 1.0, REQUESTS)) for _ in range(3)
            ]
            blocks.append(Block(factor * runs[0], runs[1], runs[2]))
        yield blocks


@pytest.mark.parametrize("rank", [None, 99])
def test_a_baseline_against_itself_is_seen_in_at_most_7_percent(rank: float | None) -> None:
    found = [find(b, rank, less=True) for b in experiments(np.random.default_rng(1))]
    assert np.mean([f.verdict == SEEN for f in found]) <= 0.07


@pytest.mark.parametrize("rank", [None, 99])
def test_twice_the_smallest_visible_effect_is_seen_in_at_least_90_percent(
    rank: float | None,
) -> None:
    nothing = [find(b, rank, less=True) for b in experiments(np.random.default_rng(2))]
    visible = float(np.median([f.visible for f in nothing if f.visible is not None]))
    planted = experiments(np.random.default_rng(3), factor=visible**-2)
    assert np.mean([find(b, rank, less=True).verdict == SEEN for b in planted]) >= 0.9


@pytest.mark.parametrize("rank", [None, 99])
@pytest.mark.parametrize("less", [True, False])
def test_resampled_repeats_see_a_baseline_against_itself_as_rarely(
    rank: float | None, less: bool
) -> None:
    found = false_alarms(next(experiments(np.random.default_rng(4))), rank, less=less)
    assert found is not None
    assert found <= MOST_FALSE == 0.07


def test_the_verdict_names_the_side_of_the_claim() -> None:
    faster = next(experiments(np.random.default_rng(5), factor=0.2))
    assert find(faster, None, less=True).verdict == SEEN
    opposite = find(faster, None, less=False)
    assert opposite.verdict == NOT_SEEN
    assert "the opposite" in opposite.reason


def test_without_an_effect_enough_seeds_exclude_one_and_few_do_not() -> None:
    rng = np.random.default_rng(6)
    exact = [Block(*(rng.normal(1, 0.01, REQUESTS) for _ in range(3))) for _ in range(SEEDS)]
    assert find(exact, None, less=True).verdict == NOT_SEEN
    noisy = [Block(*(np.exp(rng.normal(0, 1, 5)) for _ in range(3))) for _ in range(SEEDS)]
    found = find(noisy, None, less=True)
    assert found.verdict == TOO_CLOSE
    assert "seeds would" in found.reason


@pytest.mark.parametrize(
    ("alarms", "count", "words"),
    [
        (0.07, None, ""),
        (0.071, None, "resampled repeats"),
        (None, LEAST_EVENTS, ""),
        (None, LEAST_EVENTS - 1, f"{LEAST_EVENTS - 1} such requests"),
    ],
)
def test_an_effect_that_may_be_noise_or_is_of_few_events_is_too_close_to_call(
    alarms: float | None, count: int | None, words: str
) -> None:
    finding = find(next(experiments(np.random.default_rng(5), factor=0.2)), None, less=True)
    judged = doubted(finding, alarms, count)
    assert judged.verdict == (TOO_CLOSE if words else SEEN)
    assert words in judged.reason
