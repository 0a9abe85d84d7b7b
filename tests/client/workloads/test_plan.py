"""The two-level plan: its dial, and what it does inside a bin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.workloads.burstiness import describe, dispersion
from client.workloads.plan import INNER, OUTER, LoadPlan

SEED = np.random.SeedSequence(11)


@given(
    outer=st.sampled_from(OUTER), inner=st.sampled_from(INNER), bins=st.integers(1, 200),
    n=st.integers(1, 3000), b1=st.floats(0, 1), b2=st.floats(0, 1), a=st.floats(1.05, 3),
    counts=st.sampled_from(("exact", "multinomial")), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_every_plan_places_exactly_n_requests_inside_its_horizon(
    outer: str,
    inner: str,
    bins: int,
    n: int,
    b1: float,
    b2: float,
    a: float,
    counts: str,
    seed: int,
) -> None:
    plan = LoadPlan(outer=outer, inner=inner, bins=bins, a1=a, a2=a, b1=b1, b2=b2, counts=counts)
    path = plan.unit_times(n, np.random.SeedSequence(seed))
    assert path.size == n
    assert path[0] >= 0
    assert path[-1] < n
    assert plan.shares(n, np.random.SeedSequence(seed)).sum() == pytest.approx(1)


@given(cv=st.floats(0.05, 2.0), seed=st.integers(0, 2**32 - 1), n=st.integers(20_000, 60_000))
def test_the_rate_cv_asked_for_comes_out(cv: float, seed: int, n: int) -> None:
    plan = LoadPlan(outer="zipf", a1=1.2, cv_rate=cv)
    source = np.random.SeedSequence(seed)
    shares = plan.shares(n, source)
    assert math.sqrt(plan.bins * np.sum(shares**2) - 1) == pytest.approx(cv)
    path = plan.unit_times(n, source)
    counts = np.histogram(path, bins=plan.bins, range=(0, n))[0]
    # Rounded to whole requests, a bin is off by at most one.
    assert counts.std() / counts.mean() == pytest.approx(cv, abs=1.5 * plan.bins / n)


def expected_idc(plan: LoadPlan, n: int, source: np.random.SeedSequence) -> float:
    """N/g CV^2, of the exact counts in the bins."""
    return float(n * (np.sum(plan.shares(n, source) ** 2) - 1 / plan.bins))


@given(idc=st.floats(2, 60), seed=st.integers(0, 2**32 - 1))
def test_the_index_of_dispersion_asked_for_comes_out(idc: float, seed: int) -> None:
    n, source = 20_000, np.random.SeedSequence(seed)
    plan = LoadPlan(outer="zipf", a1=1.2, idc=idc)
    assert expected_idc(plan, n, source) == pytest.approx(idc)
    found = dispersion(plan.unit_times(n, source), float(n), n / plan.bins).idc
    assert found == pytest.approx(idc, rel=0.1, abs=0.2)


@given(
    outer=st.sampled_from(OUTER), b1=st.floats(0, 1), seed=st.integers(0, 2**32 - 1),
    inner=st.sampled_from(INNER),
)  # fmt: skip
def test_every_outer_family_has_the_closed_forms_rate_dispersion_and_peak(
    outer: str, b1: float, seed: int, inner: str
) -> None:
    """Counts are rounded to whole requests: a bin is off by at most one of 200 on average."""
    n, source = 20_000, np.random.SeedSequence(seed)
    plan = LoadPlan(outer=outer, inner=inner, bins=100, a1=1.5 if "zipf" in outer else 0.2, b1=b1)
    path, shares = plan.unit_times(n, source), plan.shares(n, source)
    found = dispersion(path, float(n), n / plan.bins)
    assert path.size / n == 1
    assert found.idc == pytest.approx(expected_idc(plan, n, source), rel=0.05, abs=0.1)
    assert found.peak_to_mean == pytest.approx(plan.bins * shares.max(), rel=0.02, abs=0.01)


def test_drawn_counts_have_the_closed_forms_dispersion_on_average() -> None:
    n = 5000
    plan = LoadPlan(outer="zipf", a1=1.2, idc=20.0, counts="multinomial")
    found = []
    for seed in range(200):
        path = plan.unit_times(n, np.random.SeedSequence(seed))
        found.append(dispersion(path, float(n), n / plan.bins).idc)
    assert np.mean(found) == pytest.approx(
        20.0, rel=5 * float(np.std(found)) / 20.0 / math.sqrt(200)
    )


def test_more_burstiness_than_a_family_can_give_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="raise a1 or bins"):
        LoadPlan(outer="gaussian", a1=2.0, cv_rate=3.0).unit_times(1000, SEED)
    with pytest.raises(ValueError, match="can give"):
        LoadPlan(outer="uniform", idc=5.0).unit_times(1000, SEED)


def test_uniform_inside_a_bin_is_spread_over_it() -> None:
    n = 10_000
    path = LoadPlan(inner="uniform", bins=10).unit_times(n, SEED)
    inside = path * 10 / n % 1
    assert np.histogram(inside, bins=10, range=(0, 1))[0].min() > 800
    assert describe(path, float(n)).ties == 0


def test_the_front_of_a_zipf_bin_does_not_depend_on_how_many_fall_into_it() -> None:
    few, many = (
        LoadPlan(inner="zipf", a2=1.1, bins=1).unit_times(n, SEED) / n for n in (2_000, 50_000)
    )
    assert np.median(few) == pytest.approx(np.median(many), abs=0.02)
    assert describe(np.sort(many), 1.0).ties == 0
