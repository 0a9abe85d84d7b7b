"""Slowdown by size, on records made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.analysis.fairness import Isolated, fairness, fit_isolated
from client.analysis.figures import table_of
from tests.client.analysis.made import outcome


@given(
    base=st.floats(0.001, 1), prompt=st.floats(0, 0.01), out=st.floats(0.001, 0.1),
    sizes=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 200)), min_size=12, max_size=12,
                   unique=True),
)  # fmt: skip
def test_the_isolated_latency_is_found_again(
    base: float, prompt: float, out: float, sizes: list[tuple[int, int]]
) -> None:
    truth = Isolated(base, prompt, out)
    outcomes = [
        outcome(prompt_tokens=p, output_tokens=n, end_s=base + prompt * p + out * n)
        for p, n in sizes
    ]
    found = fit_isolated(table_of(outcomes).rows)
    p = np.array([float(a) for a, _ in sizes])
    n = np.array([float(b) for _, b in sizes])
    assert found.e2e_s(p, n) == pytest.approx(truth.e2e_s(p, n), rel=0.01)
    assert min(found.base_s, found.prompt_s, found.output_s) >= 0


def test_equal_slowdown_is_fair_and_a_server_that_ignores_size_is_not() -> None:
    alone = Isolated(0.1, 0.0, 0.01)
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 200, 100).tolist()
    fair = [outcome(output_tokens=n, end_s=3 * (0.1 + 0.01 * n)) for n in sizes]
    unfair = [outcome(output_tokens=n, end_s=5.0) for n in sizes]
    a, b = (fairness(table_of(x).rows, alone) for x in (fair, unfair))
    assert a is not None
    assert b is not None
    assert a.jain == pytest.approx(1)
    assert all(q.mean == pytest.approx(3) for q in a.buckets)
    assert b.jain < 0.8
    assert b.buckets[0].mean > b.buckets[-1].mean
    assert sum(q.n for q in b.buckets) == 100
