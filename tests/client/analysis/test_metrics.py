"""Metrics on records made by hand, so that each figure can be worked out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.analysis.figures import ITL, TPOT, table_of
from client.analysis.metrics import (
    Objectives,
    fit_isolated,
    measure,
    meets,
    parse_objectives,
    warm_up,
)
from client.load.records import Outcome
from client.workloads.spec import SpecError
from tests.client.analysis.made import outcome, run_of, steady


def test_ttft_tpot_itl_and_e2e_are_what_their_definitions_say() -> None:
    o = outcome(at=2.0, sent=2.2, first=0.5, gap=0.1, tokens=5)
    m = measure(run_of([o]))
    assert m.latencies["ttft"][0] == pytest.approx(0.5)
    assert m.latencies["e2e"][0] == pytest.approx(0.9)
    assert m.latencies["tpot"][0] == pytest.approx(0.1)
    assert m.latencies["itl"] == pytest.approx([0.1] * 4)
    assert not TPOT.known(table_of([replace(o, output_tokens=1)])).size


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), min_size=1, max_size=20))
def test_ttft_and_all_itl_add_up_to_the_last_token(steps: list[tuple[float, int]]) -> None:
    times = np.cumsum([gap for gap, _ in steps])
    deliveries = tuple((float(t), k) for t, (_, k) in zip(times, steps, strict=True))
    tokens = sum(k for _, k in deliveries)
    o = outcome(deliveries=deliveries, output_tokens=tokens, first_s=deliveries[0][0])
    gaps = ITL.known(table_of([outcome(), o, outcome()]))[4:-4]
    assert len(gaps) == tokens - 1
    assert deliveries[0][0] + gaps.sum() == pytest.approx(deliveries[-1][0])


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
    assert m.intervals("e2e")["p50"].value == pytest.approx(0.9)


def good(o: Outcome, objectives: Objectives) -> bool:
    return bool(meets(table_of([o]), objectives)[0])


def test_objectives_are_all_to_be_met() -> None:
    o = outcome(first=0.5, gap=0.1)
    assert good(o, Objectives(0.6, 0.11, 1.0))
    assert not good(o, Objectives(0.4, None, None))
    assert not good(o, Objectives(None, 0.09, None))
    assert not good(o, Objectives(None, None, 0.8))
    assert parse_objectives("ttft:500ms, e2e:2.5s") == Objectives(0.5, None, 2.5)
    for bad in ("ttft", "ttft:-1s", "ttft:1s,ttft:2s", "speed:3s", "e2e:ms", "e2e:infs", "e2e:5"):
        with pytest.raises(SpecError, match="expected ttft:500ms"):
            parse_objectives(bad)


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


def test_tpot_ends_with_the_last_token_however_long_the_stream_stays_open() -> None:
    held = replace(outcome(gap=0.1, tokens=5), end_s=9.0)
    assert TPOT.known(table_of([held])) == pytest.approx(0.1)
    unseen = outcome(deliveries=(), first_s=0.5, end_s=0.9, first_from="server")
    assert TPOT.known(table_of([unseen])) == pytest.approx(0.1), (
        "without a stream, to the end of the answer"
    )
    assert not TPOT.known(table_of([replace(held, failure="cut", unfinished=True)])).size


def test_runs_of_one_workload_are_measured_over_the_same_window() -> None:
    """Whatever they show; an interrupted one loses a quarter of what it sent."""
    soon = steady([outcome(i, at=i * 0.1, first=0.01, gap=0.001) for i in range(100)])
    never = steady([outcome(i, at=i * 0.1, first=0.05 + i, gap=0.001) for i in range(100)])
    assert [warm_up(run) for run in (soon, never)] == [2.5, 2.5]
    assert {measure(run).window_s for run in (soon, never)} == {7.5}
    assert warm_up(replace(soon, interrupted="Ctrl-C", wall_s=4.0)) == 1.0
    assert warm_up(run_of([outcome(i) for i in range(9)])) == 0, "nothing of a burst is cut"


@given(
    base=st.floats(0.001, 1), prompt=st.floats(0, 0.01), out=st.floats(0.001, 0.1),
    sizes=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 200)), min_size=12, max_size=12,
                   unique=True),
)  # fmt: skip
def test_the_isolated_latency_is_found_again(
    base: float, prompt: float, out: float, sizes: list[tuple[int, int]]
) -> None:
    outcomes = [
        outcome(prompt_tokens=p, output_tokens=n, end_s=base + prompt * p + out * n)
        for p, n in sizes
    ]
    found = fit_isolated(table_of(outcomes).rows)
    for p, n in sizes:
        alone_s = found.base_s + found.prompt_s * p + found.output_s * n
        assert alone_s == pytest.approx(base + prompt * p + out * n, rel=0.01)
    assert min(found.base_s, found.prompt_s, found.output_s) >= 0
