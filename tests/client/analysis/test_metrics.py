"""Metrics and gates on records made by hand, so that each figure can be worked out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.analysis.gates import FAILED, INVALID_CLIENT, SATURATED, VALID, judge
from client.analysis.metrics import (
    Isolated,
    Objectives,
    fairness,
    fit_isolated,
    itl_s,
    measure,
    meets,
    parse_objectives,
    tpot_s,
)
from client.analysis.results import Job, Result
from client.analysis.summary import final
from client.load.records import Outcome, Run
from client.workloads.spec import SpecError
from client.workloads.workload_file import Request, seal


def outcome(
    index: int = 0, at: float = 0.0, sent: float | None = None, first: float = 0.5,
    gap: float = 0.1, tokens: int = 5, **changes: object,
) -> Outcome:  # fmt: skip
    """Tokens one by one from ``at + first`` on."""
    sent = at if sent is None else sent
    times = [at + first + k * gap for k in range(tokens)]
    made = Outcome(
        index=index, service="immediate", deadline_s=None, requested_tokens=tokens,
        intended_s=at, sent_s=sent, first_s=times[0], end_s=times[-1], left_s=times[-1],
        deliveries=tuple((t, 1) for t in times), prompt_tokens=3, output_tokens=tokens,
        queue_s=None, first_from="stream", failure=None,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def run_of(outcomes: list[Outcome], duration_s: float = 10.0, **changes: object) -> Run:
    requests = [
        Request(o.intended_s, "p", 3, o.requested_tokens, o.service, o.deadline_s, 0)
        for o in outcomes
    ]
    edges = sorted([(o.sent_s, 1) for o in outcomes] + [(o.left_s, -1) for o in outcomes])
    end = max([o.left_s for o in outcomes] + [duration_s])
    grid = np.arange(0, end + 0.05, 0.05)
    at = np.array([t for t, _ in edges])
    level = np.cumsum([step for _, step in edges])
    found = np.searchsorted(at, grid, side="right")
    samples = tuple(
        (float(t), int(level[k - 1]) if k else 0) for t, k in zip(grid, found, strict=True)
    )
    made = Run(
        target="t", workload=seal({}, requests, duration_s, steady=False),
        outcomes=tuple(outcomes), in_flight=samples, wall_s=float(end), counted="ids",
        streamed=True,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_ttft_tpot_itl_and_e2e_are_what_their_definitions_say() -> None:
    o = outcome(at=2.0, sent=2.2, first=0.5, gap=0.1, tokens=5)
    m = measure(run_of([o]))
    assert m.latencies["ttft"][0] == pytest.approx(0.5)
    assert m.latencies["ttft_sent"][0] == pytest.approx(0.3)
    assert m.latencies["e2e"][0] == pytest.approx(0.9)
    assert m.latencies["e2e_sent"][0] == pytest.approx(0.7)
    assert m.latencies["tpot"][0] == pytest.approx(0.1)
    assert m.latencies["itl"] == pytest.approx([0.1] * 4)
    assert tpot_s(replace(o, output_tokens=1)) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), min_size=1, max_size=20))
def test_ttft_and_all_itl_add_up_to_the_last_token(steps: list[tuple[float, int]]) -> None:
    times = np.cumsum([gap for gap, _ in steps])
    deliveries = tuple((float(t), k) for t, (_, k) in zip(times, steps, strict=True))
    tokens = sum(k for _, k in deliveries)
    o = outcome(deliveries=deliveries, output_tokens=tokens, first_s=deliveries[0][0])
    assert len(itl_s(o)) == tokens - 1
    assert deliveries[0][0] + sum(itl_s(o)) == pytest.approx(deliveries[-1][0])


def test_throughput_counts_tokens_of_the_window_and_never_the_drain() -> None:
    """Ten tokens a second from 0.5 s on: 95 lie in the window of ten seconds, 45 in the drain."""
    m = measure(run_of([outcome(first=0.55, gap=0.1, tokens=140)]))
    assert m.throughput == pytest.approx(95 / 10)
    assert m.output_tokens == 140


def test_failures_and_unfinished_are_misses_and_failures_are_in_no_latency() -> None:
    good = [outcome(i, at=i * 0.5) for i in range(8)]
    failed = outcome(8, at=4.0, failure="HTTP 500", first_s=None, end_s=None, deliveries=())
    cut = outcome(9, at=4.5, failure="cut", unfinished=True, end_s=None)
    m = measure(run_of([*good, failed, cut]), Objectives(ttft_s=1.0, e2e_s=1.0))
    assert (m.ok, m.failed, m.unfinished) == (8, 1, 1)
    assert m.attained == pytest.approx(0.8)
    assert m.goodput == pytest.approx(0.8)
    assert m.latencies["e2e"].size == 9
    assert math.isinf(m.latencies["e2e"].max())
    assert m.percentiles("e2e")["p50"] == pytest.approx(0.9)
    assert m.percentiles("e2e")["p99"] is None


def test_objectives_are_all_to_be_met() -> None:
    o = outcome(first=0.5, gap=0.1)
    assert meets(o, Objectives(0.6, 0.11, 1.0))
    assert not meets(o, Objectives(0.4, None, None))
    assert not meets(o, Objectives(None, 0.09, None))
    assert not meets(o, Objectives(None, None, 0.8))
    assert parse_objectives("ttft:500ms, e2e:2.5s") == Objectives(0.5, None, 2.5)
    for bad in ("ttft", "ttft:-1s", "ttft:1s,ttft:2s", "speed:3s", "tpot:x", "e2e:ms", "e2e:infs"):
        with pytest.raises(SpecError, match="expected ttft:500ms"):
            parse_objectives(bad)


def test_an_objective_without_a_unit_is_refused_since_it_might_be_seconds_or_milliseconds() -> None:
    with pytest.raises(SpecError, match="500 has no unit; write ttft:500ms or ttft:500s"):
        parse_objectives("ttft:500")


def test_deadlines_count_for_deferred_requests_only() -> None:
    runs = [
        outcome(0),
        outcome(1, service="deferred", deadline_s=1.0),
        outcome(2, service="deferred", deadline_s=0.5),
    ]
    m = measure(run_of(runs), Objectives(ttft_s=0.1))
    assert (m.deferred, m.deadlines_met) == (2, 1)
    assert m.latencies["deferred_e2e"] == pytest.approx([0.9, 0.9])
    assert m.latencies["e2e"].size == 1
    assert m.attained == pytest.approx(1 / 3)  # the one in time; objectives bind the immediate one


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
    found = fit_isolated(outcomes)
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
    a, b = fairness(fair, alone), fairness(unfair, alone)
    assert a is not None
    assert b is not None
    assert a.jain == pytest.approx(1)
    assert all(q.mean == pytest.approx(3) for q in a.buckets)
    assert b.jain < 0.8
    assert b.buckets[0].mean > b.buckets[-1].mean
    assert sum(q.n for q in b.buckets) == 100


def steady(outcomes: list[Outcome]) -> Run:
    run = run_of(outcomes)
    return replace(run, workload=replace(run.workload, steady=True))


def test_a_run_on_time_is_valid() -> None:
    run = steady([outcome(i, at=i * 0.1) for i in range(100)])
    verdict = judge(run, measure(run), server_tokens=500)
    assert verdict.word == VALID
    assert {g.name for g in verdict.gates} >= {
        "dispatch lag", "Little's law", "token conservation", "E2E = TTFT + sum ITL", "backlog",
        "achieved / offered",
    }  # fmt: skip


def test_a_late_client_is_invalid_and_the_limit_grows_with_ttft() -> None:
    late = [outcome(i, at=i * 0.1, sent=i * 0.1 + 0.015) for i in range(100)]
    run = run_of(late)
    assert judge(run, measure(run)).word == INVALID_CLIENT
    slow = run_of([outcome(i, at=i * 0.1, sent=i * 0.1 + 0.015, first=1.0) for i in range(100)])
    assert judge(slow, measure(slow)).word == VALID


def test_growing_queues_are_saturated() -> None:
    """Two requests a second arrive, one a second is answered."""
    run = steady([outcome(i, at=i * 0.1, first=0.05 + i * 0.1, gap=0.001) for i in range(100)])
    verdict = judge(run, measure(run))
    assert verdict.word == SATURATED
    assert "backlog" in verdict.reason


def test_a_queue_that_fills_from_empty_and_settles_is_valid() -> None:
    """Each takes 3 s, so those in flight grow for a third of the run, and TTFT by 1 ms a second."""
    run = steady([outcome(i, at=i * 0.1, first=0.05 + i * 1e-4, gap=0.7) for i in range(100)])
    assert judge(run, measure(run)).word == VALID


def test_a_server_that_takes_all_in_and_slows_down_is_saturated() -> None:
    """No line before the first token; each answer takes half a second longer per second."""
    run = steady(
        [outcome(i, at=i * 0.1, first=0.05 + i * 1e-4, gap=0.1 + i * 0.0125) for i in range(100)]
    )
    assert judge(run, measure(run)).word == SATURATED


def test_books_that_do_not_close_are_invalid() -> None:
    outcomes = [outcome(i, at=i * 0.1) for i in range(100)]
    run = run_of(outcomes)
    assert judge(run, measure(run), server_tokens=499).word == INVALID_CLIENT
    lying = run_of([replace(o, output_tokens=6) for o in outcomes])
    assert "token conservation" in judge(lying, measure(lying)).reason
    blind = replace(run, in_flight=tuple((t, 2 * n) for t, n in run.in_flight))
    assert "Little's law" in judge(blind, measure(blind)).reason
    back = [replace(o, deliveries=tuple(reversed(o.deliveries))) for o in outcomes]
    assert "out of order" in judge(run_of(back), measure(run_of(back))).reason
    short = replace(run, outcomes=run.outcomes[:-1])
    assert judge(short, measure(short)).word == INVALID_CLIENT


def test_usage_counts_need_not_equal_events() -> None:
    outcomes = [replace(outcome(i, at=i * 0.1), output_tokens=6) for i in range(20)]
    run = run_of(outcomes, counted="the server's usage.completion_tokens")
    verdict = judge(run, measure(run))
    assert verdict.word == VALID
    assert any("an event is not a token" in g.found for g in verdict.gates)


def test_failed_runs_say_so() -> None:
    outcomes = [
        outcome(i, failure="HTTP 503", first_s=None, end_s=None, deliveries=()) for i in range(5)
    ]
    run = run_of(outcomes)
    verdict = judge(run, measure(run))
    assert verdict.word == FAILED
    assert "HTTP 503" in verdict.reason


def test_an_interrupted_run_is_measured_up_to_its_end_and_left_out_of_comparisons() -> None:
    cut = run_of([outcome(i, at=i * 0.1) for i in range(20)], interrupted="Ctrl-C", wall_s=3.0)
    assert measure(cut).window_s == pytest.approx(3.0)
    empty = replace(cut, outcomes=())
    results = [
        Result(
            job=Job("dynamic", 1.0, seed, repeat=False), attempt=0, run=run, measured=measure(run),
            verdict=judge(run, measure(run)), server=None, iterations=None,
        )
        for seed, run in enumerate((run_of([outcome()]), cut, empty))
    ]  # fmt: skip
    assert [r.seed for r in final(results)] == [0]
