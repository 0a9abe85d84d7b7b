"""Gates and verdicts on records made by hand: of one run, and of several seeds together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client.analysis.comparison.headline import headline
from client.analysis.comparison.results import Result
from client.analysis.comparison.summary import points, verdict_of
from client.analysis.gates import FAILED, INVALID_CLIENT, SATURATED, VALID, judge
from client.analysis.metrics import Objectives, measure
from client.load.records import Run
from client.load.servers.processes import NO_WAIT
from tests.client.analysis.made import CALIBRATION, outcome, result, run_of, steady


def late_client(first: float, late_s: float = 0.02, every: int = 5) -> Run:
    """Each fifth request leaves 20 ms late."""
    sent = [i * 0.1 + (late_s if i % every == 0 else 0.0005) for i in range(100)]
    return run_of([outcome(i, at=i * 0.1, sent=at, first=first) for i, at in enumerate(sent)])


def test_a_late_client_voids_only_the_latencies_that_it_distorts() -> None:
    run = late_client(first=0.05)
    m = measure(run)
    verdict = judge(run, m)
    void = {v.figure for v in verdict.voids}
    # One in five is 20 ms late: that is in the p90 of 50 ms, not in the median, nor in half a
    # second of E2E.
    assert void == {"ttft_p90", "ttft_p95", "ttft_p99"}
    assert verdict.word == VALID
    assert all("20 ms late" in v.reason for v in verdict.voids)
    near = judge(run, measure(run, Objectives(ttft_s=0.04)))
    assert {v.figure for v in near.voids} == {*void, "goodput"}
    slow = late_client(first=1.0)
    assert not judge(slow, measure(slow)).voids


@pytest.mark.parametrize(
    ("gap", "void"), [(0.05, {"itl"}), (0.015, {"itl", "tpot"})], ids=["slow", "quick"]
)
def test_a_late_client_distorts_tpot_by_its_share_of_a_token(gap: float, void: set[str]) -> None:
    """Each request leaves 20 ms late, which is 4 ms for each of its five tokens; five times that
    is the limit. A gap between tokens may hold the lateness whole."""
    late = [outcome(i, at=i * 0.1, sent=i * 0.1 + 0.02, first=1.0, gap=gap) for i in range(100)]
    run = run_of(late)
    found = {v.figure for v in judge(run, measure(run)).voids}
    assert {name for name in ("itl", "tpot") if f"{name}_p50" in found} == void


def test_the_headline_states_no_ratio_of_a_figure_that_the_client_falsified() -> None:
    late = [
        result(late_client(first=0.05, every=1), seed, system=name)
        for seed in (0, 1)
        for name in ("nobatch", "dynamic")
    ]
    found = headline(points(late, CALIBRATION), Objectives(ttft_s=1.0), 0.9)
    (pair,) = found.pairs
    assert pair.ratios["ttft"] is None
    assert pair.ratios["e2e"] is not None, "half a second is no matter of 20 ms"


@pytest.mark.parametrize(
    ("wait_grows_s", "gap", "gap_grows_s", "word"),
    [(0.1, 0.001, 0.0, SATURATED), (1e-4, 0.7, 0.0, VALID), (1e-4, 0.1, 0.0125, SATURATED)],
    ids=["a queue grows", "it fills and settles", "all are taken in and served ever more slowly"],
)
def test_a_server_is_saturated_while_its_queue_or_its_answers_grow(
    wait_grows_s: float, gap: float, gap_grows_s: float, word: str
) -> None:
    run = steady(
        [
            outcome(i, at=i * 0.1, first=0.05 + i * wait_grows_s, gap=gap + i * gap_grows_s)
            for i in range(100)
        ]
    )
    verdict = judge(run, measure(run))
    assert verdict.word == word
    assert ("backlog" in verdict.reason) == (word == SATURATED)


def test_books_that_do_not_close_are_invalid_and_a_server_that_fails_says_why() -> None:
    outcomes = [outcome(i, at=i * 0.1) for i in range(100)]
    run = run_of(outcomes)
    dead = [replace(o, failure="HTTP 503", end_s=None, deliveries=()) for o in outcomes]
    for found, tokens, word, reason in (
        (run, 500, VALID, ""),
        (run, 499, INVALID_CLIENT, "token conservation"),
        (run, 540, "DISTURBED", "another client used this server"),
        (
            run_of([replace(o, output_tokens=6) for o in outcomes]),
            None,
            INVALID_CLIENT,
            "token con",
        ),
        (replace(run, outcomes=run.outcomes[:-1]), None, INVALID_CLIENT, "answers"),
        (run_of(dead), None, FAILED, "HTTP 503"),
        (
            run_of([*outcomes[1:], replace(outcomes[0], requested_tokens=9)]),
            None,
            INVALID_CLIENT,
            "1 of 100 responses have another length, the first 5 tokens instead",
        ),
    ):
        verdict = judge(found, measure(found), server_tokens=tokens)
        assert verdict.word == word
        assert reason in verdict.reason


def test_an_interrupted_run_is_measured_up_to_its_end_and_left_out_of_comparisons() -> None:
    cut = run_of([outcome(i, at=i * 0.1) for i in range(20)], interrupted="Ctrl-C", wall_s=3.0)
    assert measure(cut).window_s == pytest.approx(3.0)
    empty = replace(cut, outcomes=())
    results = [result(run, seed) for seed, run in enumerate((run_of([outcome()]), cut, empty))]
    (point,) = points(results, CALIBRATION)
    assert [*point.runs] == [0]


def queue(grows_s: float, noise_s: float, seed: int) -> Run:
    """TTFT grows by so many seconds a second; noise of one run hides a small growth."""
    rng = np.random.default_rng(seed)
    waits = 0.5 + grows_s * np.arange(30) * 0.1 + rng.normal(0, noise_s, 30).clip(-0.4)
    return steady([outcome(i, at=i * 0.1, first=w, gap=0.01) for i, w in enumerate(waits)], 3.0)


def test_saturation_is_judged_on_all_seeds_together() -> None:
    """A growth that no short run shows for sure is sure after twelve."""
    grown = [result(queue(0.1, 0.2, seed), seed) for seed in range(12)]
    assert sum(r.verdict.word == SATURATED for r in grown) < 12
    word, reasons = verdict_of(grown)
    assert word == SATURATED
    assert "requests over the sends" in reasons[0]


def test_one_unlucky_seed_does_not_saturate_a_load_that_is_sustained() -> None:
    calm = [result(queue(0.0, 0.1, seed), seed) for seed in range(5)]
    unlucky = result(queue(0.6, 0.02, 9), 5)
    assert unlucky.verdict.word == SATURATED
    assert verdict_of([*calm, unlucky])[0] == VALID
    assert verdict_of([unlucky])[0] == SATURATED


def test_a_seed_whose_records_are_wrong_is_left_out_and_half_of_them_spoil_the_point() -> None:
    good = [result(run_of([outcome(i, at=i * 0.1) for i in range(30)], 3.0), s) for s in range(3)]
    wrong = [
        result(run_of([outcome(i, at=i * 0.1, requested_tokens=9) for i in range(30)], 3.0), s)
        for s in (3, 4, 5)
    ]
    point = points([*good, wrong[0]], CALIBRATION)[0]
    assert point.verdict == VALID
    assert point.ok == 90
    assert "seed 3 left out: requested tokens" in point.reasons[0]
    dead = [outcome(i, failure="HTTP 500", end_s=None, deliveries=()) for i in range(30)]
    failed = points([*good, *(result(run_of(dead), s) for s in (3, 4, 5))], CALIBRATION)[0]
    assert failed.verdict == FAILED
    assert "HTTP 500" in failed.reasons[0]
    spoilt = points([*good, *wrong], CALIBRATION)[0]
    assert spoilt.verdict == INVALID_CLIENT
    assert not spoilt.usable


def test_a_saturated_point_shows_no_figure_of_those_that_ended() -> None:
    """TPOT is of the quickest there; the rest of the queue has none."""
    run = steady([outcome(i, at=i * 0.1, first=0.05 + i * 0.1, gap=0.001) for i in range(100)])
    point = points([result(run)], CALIBRATION)[0]
    assert point.verdict == SATURATED
    assert point.latency("tpot", 50) is None
    calm = steady([outcome(i, at=i * 0.1) for i in range(100)])
    sustained = points([result(calm)], CALIBRATION)[0]
    assert sustained.latency("tpot", 50) == pytest.approx(0.1)


def delivering(tokens_per_s: float, verdict: str, load: float, name: str, seed: int) -> Result:
    """A run of ten seconds that a growing queue saturates, or none."""
    grows_s = 0.05 if verdict == SATURATED else 0.0
    run = steady([outcome(i, at=i * 0.1, first=0.05 + i * grows_s, gap=0.001) for i in range(100)])
    made = result(run, seed, system=name, load=load)
    return replace(made, measured=replace(made.measured, throughput=tokens_per_s, attained=1.0))


def test_each_system_counts_at_the_load_where_it_delivers_most() -> None:
    """An overload that costs the slower one a third of its tokens does not inflate the ratio."""
    told = {
        "nobatch": {0.8: (320.0, VALID), 2.0: (450.0, SATURATED), 16.0: (300.0, SATURATED)},
        "dynamic": {0.8: (320.0, VALID), 2.0: (1100.0, VALID), 16.0: (2250.0, SATURATED)},
    }
    made = [
        delivering(tokens_per_s * (1 + 0.01 * seed), verdict, load, name, seed)
        for name, loads in told.items()
        for load, (tokens_per_s, verdict) in loads.items()
        for seed in range(3)
    ]
    made += [delivering(640.0, SATURATED, 2.0, NO_WAIT, seed) for seed in range(3)]
    found = headline(points(made, CALIBRATION), Objectives(ttft_s=0.3), share=0.9)
    assert [(x.system, x.load) for x in found.limits] == [("nobatch", 2.0), ("dynamic", 16.0)]
    assert found.limit_ratios[0].throughput.value == pytest.approx(5.0)
    assert [(x.requests > 0, x.seconds) for x in found.limits] == [(True, 30.0)] * 2
    latencies = [p.load for p in found.pairs if p.ratios["ttft"] is not None]
    assert latencies == [0.8], "only where both keep up"
    assert all(p.ratios["throughput"] is None for p in found.pairs)
    brackets = {b.system: (b.passed, b.failed) for b in found.capacities}
    assert brackets["nobatch"] == (0.8, 2.0), "its queue would grow, whatever the objectives say"


def test_a_run_that_is_left_out_at_one_load_leaves_the_seeds_of_the_limits_alone() -> None:
    told = {"nobatch": (1.0, 1.0, 1.0), "dynamic": (2.0, 2.0, 16.0)}  # by seed, at the limit
    made = [
        delivering(100.0 * load * times, SATURATED, load, name, seed)
        for name, of in told.items()
        for load in (1.0, 2.0)
        for seed, times in enumerate(of)
    ]
    first = made[0]
    made[0] = replace(first, verdict=replace(first.verdict, word=INVALID_CLIENT))
    found = headline(points(made, CALIBRATION), Objectives(ttft_s=0.3), share=0.9)
    assert [x.load for x in found.limits] == [2.0, 2.0]
    assert found.limit_ratios[0].throughput.value == pytest.approx(4.0)
