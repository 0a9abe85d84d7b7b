"""Arrival processes and the two-level plan against their closed forms, within a few standard
errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.workloads.arrivals import LoadPlan, horizon, parse_arrivals
from client.workloads.burstiness import describe, dispersion

N = 40_000
SEED = np.random.SeedSequence(11)
OPEN = (
    "constant", "poisson", "gamma:cv=0.5", "gamma:cv=2", "burst", "plan:low", "plan:medium",
    "plan:high", "plan:outer=gaussian,a1=0.2",
)  # fmt: skip


def times(spec: str, n: int = N, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return parse_arrivals(spec).unit_times(n, np.random.SeedSequence(seed))  # type: ignore[return-value]


@pytest.mark.parametrize("spec", OPEN)
def test_a_path_has_n_sorted_times_from_zero_on_and_is_a_function_of_its_seed(spec: str) -> None:
    path = times(spec, 1000)
    assert path.size == 1000
    assert path[0] >= 0
    assert (np.diff(path) >= 0).all()
    assert np.array_equal(path, times(spec, 1000))
    if spec not in ("constant", "burst"):
        assert not np.array_equal(path, times(spec, 1000, seed=1))
    if not spec.startswith("plan"):  # every load of a sweep plays the same sample path
        assert np.array_equal(times(spec, 300), path[:300])


@given(cv=st.floats(0.3, 3), seed=st.integers(0, 2**32 - 1))
def test_gamma_gaps_have_unit_mean_and_the_cv_asked_for(cv: float, seed: int) -> None:
    gaps = np.diff(times(f"gamma:cv={cv}", seed=seed))
    assert abs(gaps.mean() - 1) < 6 * cv / math.sqrt(N)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05 * max(1, cv) ** 1.5)


@pytest.mark.parametrize(
    ("spec", "limit"),
    [("constant", 0.0), ("poisson", 1.0), ("gamma:burstiness=0.25", 4.0), ("gamma:cv=0.5", 0.25)],
)
def test_the_index_of_dispersion_of_a_renewal_process_tends_to_cv_squared(
    spec: str, limit: float
) -> None:
    """Over windows much longer than a gap; 400 windows know it within 6 * sqrt(2/400)."""
    path = times(spec, 160_000, seed=3)
    found = dispersion(path, horizon(parse_arrivals(spec), path), 400.0)["idc"]
    assert abs(found - limit) <= 6 * math.sqrt(2 / 400) * limit + 0.02


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("poison", "allowed: constant, poisson"),
        ("gamma", "either cv or burstiness"),
        ("gamma:cv=0", "cv: Input should be greater than 0"),
        ("gamma:cv=1,burstiness=1", "either cv or burstiness"),
        ("gamma:cvv=2", "'cvv=2' is unknown; allowed, each once: cv, burstiness"),
        ("gamma:cv=2,cv=3", "'cv=3' is unknown; allowed, each once"),
        ("gamma:burstiness=2,3", "'3' is unknown"),
        ("closed:users=1.5", "valid integer"),
        ("plan:low,bins=3", "': bins cannot be combined with level"),
        ("plan:outer=gaussian,a1=2,cv_rate=3", "raise a1 or bins"),
    ],
)
def test_an_impossible_shape_is_refused_with_what_is_allowed(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        times(spec)


@given(
    outer=st.sampled_from(("uniform", "gaussian", "inv_gaussian", "zipf")),
    inner=st.sampled_from(("uniform", "zipf")), bins=st.integers(1, 200), n=st.integers(1, 3000),
    a=st.floats(0.05, 3), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_every_plan_places_exactly_n_requests_inside_its_horizon_as_its_shares_say(
    outer: str, inner: str, bins: int, n: int, a: float, seed: int
) -> None:
    plan = LoadPlan(outer=outer, inner=inner, bins=bins, a1=a, a2=a)  # type: ignore[arg-type]
    source = np.random.SeedSequence(seed)
    path, shares = plan.unit_times(n, source), plan.shares(n, source)
    assert path.size == n
    assert path[0] >= 0
    assert path[-1] < n
    assert shares.sum() == pytest.approx(1)
    counts = np.bincount((path * bins / n).astype(int).clip(0, bins - 1), minlength=bins)
    assert np.abs(counts - shares * n).max() < 1 + 1e-6, "rounded to whole requests"


@given(cv=st.floats(0.05, 2.0), seed=st.integers(0, 2**32 - 1), n=st.integers(20_000, 60_000))
def test_the_rate_cv_asked_for_comes_out(cv: float, seed: int, n: int) -> None:
    plan = LoadPlan(outer="zipf", a1=1.2, cv_rate=cv)
    counts = np.histogram(plan.unit_times(n, np.random.SeedSequence(seed)), 100, (0, n))[0]
    # Rounded to whole requests, a bin is off by at most one.
    assert counts.std() / counts.mean() == pytest.approx(cv, abs=1.5 * plan.bins / n)


def test_the_front_of_a_zipf_bin_does_not_depend_on_how_many_fall_into_it() -> None:
    few, many = (
        LoadPlan(inner="zipf", a2=1.1, bins=1).unit_times(n, SEED) / n for n in (2_000, 50_000)
    )
    assert np.median(few) == pytest.approx(np.median(many), abs=0.02)
    assert describe(np.sort(many), 1.0)["ties"] == 0
    assert describe(np.array([0.0, 0.0, 0.0, 1.0, 2.0]), 2.0)["ties"] == 0.5
    assert describe(np.zeros(10), 0.0)["ties"] == 1.0
