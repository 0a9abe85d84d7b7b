"""The step time as a curve, and as it is learnt."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.prediction.predictor import (
    LEAST_LENGTHS,
    MOST_PLANNING_S,
    REFIT_EVERY,
    USERS_KEPT,
    LengthPredictor,
    Predictor,
    features,
)
from scheduling.prediction.step_time import SEEN_OFTEN, Work, fit, nnls
from seams import Advance, IterationRecord
from tests.scheduling.shown import Shown


def record(work: Work, duration_s: float) -> IterationRecord:
    return IterationRecord(
        start_s=0.0,
        duration_s=duration_s,
        batch_size=int(work.num_rows),
        num_tokens=int(work.num_tokens),
        num_positions=int(work.num_tokens),
        num_drawn=int(work.num_drawn),
        attended=int(work.attended),
        context=int(work.context),
        with_deferred=work.deferred,
    )


def law_s(work: Work) -> float:
    """As a CPU's: bound by reading the weights up to eight tokens, then by arithmetic."""
    tokens = 0.003 * max(work.num_tokens, 8)
    return 0.02 + tokens + 0.001 * work.num_rows + 2e-6 * work.attended + 1e-6 * work.context


def random_work(rng: random.Random) -> Work:
    steps = []
    for id in range(rng.randint(1, 20)):
        computed = rng.choice([0, rng.randint(1, 200)])
        tokens = 1 if computed else rng.choice([1, rng.randint(2, 60)])
        prompt = computed + tokens + rng.choice([0, 0, 0, 5])
        steps.append(Advance(Shown(id, prompt_tokens=prompt, computed=computed), tokens))
    return Work.of(steps)


def taught(n: int, noise: float = 0.0, stalls: float = 0.0) -> Predictor:
    rng, predictor = random.Random(1), Predictor()
    for _ in range(n):
        work = random_work(rng)
        duration_s = law_s(work) * rng.lognormvariate(0, noise)
        if rng.random() < stalls:
            duration_s *= rng.uniform(2, 6)
        predictor.iteration(record(work, duration_s))
    return predictor


def test_work_counts_what_an_iteration_computes() -> None:
    decode = Advance(Shown(1, prompt_tokens=9, generated=1, computed=9), 1)
    prompt = Advance(Shown(2, prompt_tokens=4), 4)
    piece = Advance(Shown(3, prompt_tokens=9, computed=3), 2)
    assert Work.of([decode, prompt, piece]) == Work(7, 3, 2, 10 + 10 + (4 + 5), 10 + 4 + 5)


def test_planning_for_deferred_requests_is_learnt_apart() -> None:
    rng, predictor, planning_s = random.Random(1), Predictor(), 0.8 * MOST_PLANNING_S
    for n in range(600):
        work = random_work(rng)._replace(deferred=n % 2 == 0)
        step_s = law_s(work) / 100 + planning_s * work.deferred
        predictor.iteration(record(work, step_s))
    work = random_work(rng)
    alone_s, beside_s = (predictor.seconds(work._replace(deferred=d)) or 0 for d in (False, True))
    assert alone_s == pytest.approx(law_s(work) / 100, rel=0.02)
    assert beside_s - alone_s == pytest.approx(planning_s, rel=0.1)


def test_without_enough_iterations_or_a_fit_nothing_is_foretold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(1, 1, 1, 1, 1)
    assert taught(REFIT_EVERY - 1).seconds(work) is None
    rng, chance = random.Random(3), Predictor()
    for _ in range(300):
        chance.iteration(record(random_work(rng), rng.uniform(0.001, 1.0)))
    assert chance.seconds(work) is None
    learnt = taught(REFIT_EVERY)
    learnt_s = learnt.seconds(work)
    assert learnt_s is not None

    def fails(*_: object) -> None:
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr("scheduling.prediction.predictor.fit", fails)
    assert taught(REFIT_EVERY).seconds(work) is None
    for _ in range(REFIT_EVERY):
        learnt.iteration(record(random_work(rng), 1.0))
    assert learnt.seconds(work) == learnt.predict(work) == learnt_s


@pytest.mark.parametrize(("noise", "stalls", "off"), [(0.0, 0.0, 0.02), (0.1, 0.1, 0.1)])
def test_a_curve_with_a_floor_is_learnt_in_spite_of_noise_and_stalls(
    noise: float, stalls: float, off: float
) -> None:
    predictor, rng = taught(1500, noise, stalls), random.Random(9)
    works = [random_work(rng) for _ in range(200)]
    errors = [abs((predictor.seconds(work) or 0.0) / law_s(work) - 1) for work in works]
    assert float(np.quantile(errors, 0.9)) < off


@pytest.mark.parametrize("run", [1, 10_000])
def test_the_time_between_consecutive_iterations_counts(run: int) -> None:
    """4 ms of planning, or 1 s without work after every `run` iterations."""
    rng, predictor, now_s = random.Random(6), Predictor(), 0.0
    for n in range(1, 600):
        work = random_work(rng)
        predictor.iteration(replace(record(work, law_s(work)), start_s=now_s))
        now_s += law_s(work) + 0.004
        if n % run == 0:
            predictor.busy(0.0, now_s)
            now_s += 1.0
    work = random_work(rng)
    between_s = 0.0 if run == 1 else 0.004
    assert predictor.seconds(work) == pytest.approx(law_s(work) + between_s, rel=0.01)


def test_the_margin_is_the_recent_drift() -> None:
    predictor, rng = taught(640), random.Random(5)
    assert predictor.seconds(Work(1, 1, 1, 1, 1)) is not None
    for _ in range(REFIT_EVERY):
        work = random_work(rng)
        predictor.iteration(record(work, 1.25 * law_s(work)))
    predictor.seconds(Work(1, 1, 1, 1, 1))
    assert predictor.margin == pytest.approx(0.25, abs=0.03)


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 30), columns=st.integers(1, 8))
def test_no_non_negative_solution_is_better(seed: int, rows: int, columns: int) -> None:
    """The conditions of Karush, Kuhn and Tucker."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(rows, columns)) * rng.choice([0.0, 1.0], size=columns, p=[0.2, 0.8])
    b = rng.normal(size=rows)
    x = nnls(a, b)
    gradient = a.T @ (a @ x - b)
    assert (x >= 0).all()
    assert (gradient >= -1e-6).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-6


def test_sizes_that_no_iteration_had_lie_between_those_that_many_had() -> None:
    """Otherwise one segment has the whole difference, and the sizes below it look free."""
    works = [Work(tokens, 4, 4, 100, 100) for tokens in (4, 16, 300)] * (2 * SEEN_OFTEN)
    matrix = np.array([features(record(work, 1.0)) for work in works])
    curve = fit(matrix, np.array([0.01 + 0.001 * work.num_tokens for work in works]))
    for tokens in (4, 9, 16, 40, 100, 200, 300, 500):
        foretold_s = curve.seconds(Work(tokens, 4, 4, 100, 100))
        assert foretold_s == pytest.approx(0.01 + 0.001 * tokens, rel=0.05)


def test_the_median_of_a_users_own_requests_of_this_length_comes_before_that_of_all() -> None:
    lengths = LengthPredictor()
    assert lengths.predict(1, 10) is None
    for generated in (2, 900, 3, 4):
        lengths.learn(1, 10, generated)
    assert lengths.predict(1, 9) == lengths.predict(2, 9) == 4
    assert lengths.predict(1, 100) is None
    for _ in range(LEAST_LENGTHS):
        lengths.learn(2, 10, 50)
    assert (lengths.predict(1, 10), lengths.predict(2, 10)) == (4, 50)


def test_of_many_users_the_idle_ones_are_forgotten() -> None:
    lengths = LengthPredictor()
    for user in range(USERS_KEPT + 5):
        lengths.learn(user, 10, 70)
    assert len(lengths._users) == USERS_KEPT
