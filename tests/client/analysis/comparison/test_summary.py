"""Ratios between systems, where the figures of each run are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.analysis.comparison.results import Result
from client.analysis.comparison.summary import final, paired, runs_by_seed
from client.analysis.figures import THROUGHPUT
from client.analysis.statistics import Interval
from tests.client.analysis.made import outcome, result, run_of


def ran(system: str, seed: int, tokens: int, *, repeat: bool = False) -> Result:
    """A run of ten seconds that delivered so many tokens."""
    run = run_of([outcome(tokens=tokens, gap=0.01)])
    made = result(run, seed, system=system)
    return replace(made, job=replace(made.job, repeat=repeat))


def ratio(results: list[Result]) -> Interval | None:
    dynamic, static = (runs_by_seed(results, name, 1.0) for name in ("dynamic", "static"))
    return paired(dynamic, static, THROUGHPUT)


def test_a_system_that_ran_before_and_after_the_others_counts_with_the_mean_of_both() -> None:
    """So a machine that slows down by a tenth a run gives the ratio that a steady one gives."""
    results = [
        result
        for seed in range(2)
        for result in (
            ran("dynamic", seed, 200, repeat=True),
            ran("static", seed, 90),
            ran("dynamic", seed, 162),
        )
    ]
    both = ratio(results)
    assert both is not None
    assert both.value == pytest.approx(2.0)
    alone = ratio(final(results))
    assert alone is not None
    assert alone.value == pytest.approx(1.8)
