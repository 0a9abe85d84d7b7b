"""Arrival processes against their closed forms. Tolerances are a few standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.workloads.arrivals import Gamma, Mmpp, Weibull, horizon, parse_arrivals
from client.workloads.burstiness import describe, dispersion
from client.workloads.spec import SpecError

N = 40_000
OPEN = (
    "constant", "poisson", "gamma:cv=0.5", "gamma:cv=2", "weibull:cv=1.5", "mmpp", "ramp", "burst",
    "plan:low", "plan:medium", "plan:high", "plan:outer=gaussian,a1=0.2,inner=inv_gaussian",
    "plan:outer=poisson,a1=3,inner=poisson", "plan:outer=zipf_draw,a1=1.5,counts=multinomial",
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


@settings(deadline=None, max_examples=25)
@given(
    cv=st.floats(0.3, 3), seed=st.integers(0, 2**32 - 1), family=st.sampled_from((Gamma, Weibull))
)
def test_renewal_gaps_have_unit_mean_and_the_cv_asked_for(
    cv: float, seed: int, family: type[Gamma] | type[Weibull]
) -> None:
    gaps = np.diff(family(cv=cv).unit_times(N, np.random.SeedSequence(seed)))
    assert abs(gaps.mean() - 1) < 6 * cv / math.sqrt(N)
    # The fourth moment of a Weibull law of CV 3 is huge, so the sample CV is known only roughly.
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05 * max(1, cv) ** 1.5)


@pytest.mark.parametrize(
    ("spec", "limit"),
    [("constant", 0.0), ("poisson", 1.0), ("gamma:cv=2", 4.0), ("gamma:cv=0.5", 0.25),
     ("weibull:cv=1.5", 2.25)],
)  # fmt: skip
def test_the_index_of_dispersion_of_a_renewal_process_tends_to_cv_squared(
    spec: str, limit: float
) -> None:
    """Over windows much longer than a gap; 400 windows know it within 6 * sqrt(2/400)."""
    path = times(spec, 160_000, seed=3)
    found = dispersion(path, horizon(parse_arrivals(spec), path), 400.0).idc
    assert abs(found - limit) <= 6 * math.sqrt(2 / 400) * limit + 0.02


@pytest.mark.parametrize("window", [5.0, 50.0, 500.0])
def test_an_mmpp_has_the_closed_forms_rate_and_dispersion(window: float) -> None:
    """Fischer and Meier-Hellstern, The MMPP cookbook (Performance Evaluation 18, 1993)."""
    peak, share, cycle = 4.0, 0.15, 60.0
    path = Mmpp(peak, share, cycle).unit_times(200_000, np.random.SeedSequence(5))
    assert path.size / path[-1] == pytest.approx(1, abs=0.05)
    rest = (1 - peak * share) / (1 - share)
    leave = 1 / (share * cycle) + 1 / ((1 - share) * cycle)
    amplitude = 2 * share * (1 - share) * (peak - rest) ** 2 / leave
    expected = 1 + amplitude * (1 + math.expm1(-leave * window) / (leave * window))
    found = dispersion(path, float(path[-1]), window)
    error = 8 * math.sqrt(2 / found.windows) + 4 * math.sqrt(cycle / path[-1])
    assert found.idc == pytest.approx(expected, rel=error)


def test_vllms_burstiness_is_another_name_for_the_same_path() -> None:
    assert np.array_equal(times("gamma:burstiness=0.25", 500), times("gamma:cv=2", 500))


@settings(deadline=None, max_examples=10)
@given(start=st.floats(0.1, 1.9), seed=st.integers(0, 2**32 - 1))
def test_a_ramp_has_the_dispersion_and_the_peak_of_its_rate(start: float, seed: int) -> None:
    """A Poisson process of rate r(t): IDC = 1 + w Var r, and a straight line has (1 - start)^2/3.

    Windows of w mean gaps know a rate to within 1/sqrt(w).
    """
    n, window = 100_000, 1000.0
    path = parse_arrivals(f"ramp:start={start}").unit_times(n, np.random.SeedSequence(seed))
    found = dispersion(path, float(n), window)
    assert found.idc == pytest.approx(1 + window * (1 - start) ** 2 / 3, rel=0.3, abs=3)
    assert found.peak_to_mean == pytest.approx(max(start, 2 - start), abs=8 / math.sqrt(window))


@pytest.mark.parametrize("spec", ["poisson", "gamma:cv=2", "weibull:cv=2", "mmpp", "constant"])
def test_a_longer_path_begins_with_the_shorter_one(spec: str) -> None:
    """So that every load of a sweep plays the same sample path."""
    assert np.array_equal(times(spec, 300), times(spec, 1000)[:300])


def test_describe_counts_ties() -> None:
    tied = np.array([0.0, 0.0, 0.0, 1.0, 2.0])
    assert describe(tied, 2.0).ties == 0.5
    assert describe(np.zeros(10), 0.0).ties == 1.0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("poison", "allowed: constant, poisson"),
        ("gamma", "either cv or burstiness"),
        ("gamma:cv=0", "cv must be a number > 0"),
        ("gamma:cv=1,burstiness=1", "either cv or burstiness"),
        ("gamma:cv=fast", "cv must be a number, not 'fast'"),
        ("gamma:cvv=2", "'cvv' is unknown; allowed: cv, burstiness"),
        ("weibull", "needs cv"),
        ("weibull:cv=99", "between 0.05 and 20"),
        ("mmpp:peak=10,share=0.5", "peak x share at most 1"),
        ("ramp:start=3", "between 0 and 2"),
        ("closed:users=0", "at least 1"),
        ("closed:users=1.5", "whole number"),
        ("plan:huge", "low, medium, high"),
        ("plan:low,bins=3", "bins cannot be combined with level"),
        ("plan:outer=cauchy", "outer must be one of"),
        ("plan:cv_rate=1,idc=2", "not both"),
        ("plan:b1=2", "between 0 and 1"),
        ("plan:outer=zipf,b1=0.5,cv_rate=1", "solves for b1"),
    ],
)
def test_an_impossible_shape_is_refused_with_what_is_allowed(spec: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_arrivals(spec)


@pytest.mark.parametrize("shape", ["poisson", "plan:low", "plan:medium", "plan:high"])
def test_burstiness_has_a_word_only_where_there_are_requests_enough(shape: str) -> None:
    """A hundred requests of a medium plan are one in each window, and would look like none."""
    process = parse_arrivals(shape)
    for n in (100, 300):
        times = process.unit_times(n, np.random.SeedSequence(0))
        assert describe(times, horizon(process, times)).level is None
    times = process.unit_times(10_000, np.random.SeedSequence(0))
    word = "low" if shape == "poisson" else shape.removeprefix("plan:")
    assert describe(times, horizon(process, times)).level == word
