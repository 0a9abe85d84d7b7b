"""What the pictures of the pages compute from recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.deferred.picture import BIN_S, mean_rows
from benchmarks.pictures import one_token
from benchmarks.pictures.__main__ import MODES, run, stretches
from benchmarks.pictures.one_token import EACH, ONCE, decodes, innermost, once
from benchmarks.pictures.watched import Span
from benchmarks.pictures.write_a_policy import CASES, DEFERRED, draw
from tests.scheduling.shown import Shown, view


def test_an_iteration_counts_in_each_bin_by_the_time_that_it_takes_there() -> None:
    rows = [[1, 0, 1, "decode"], [2, 1, 5, "chunk"], [3, 2, 0, "paused"]]
    lines = [
        {"type": "iteration", "start_s": 7.0, "duration_s": BIN_S / 2, "rows": rows[:1]},
        {"type": "iteration", "start_s": 7 + BIN_S * 0.75, "duration_s": BIN_S, "rows": rows},
    ]
    found = mean_rows(lines, {1: "immediate", 2: "deferred", 3: "deferred"})
    assert found["immediate"] == pytest.approx([0.75, 0.75])
    assert found["deferred"] == pytest.approx([0.25, 0.75])


def test_the_picture_of_the_modes_shows_rows_that_a_static_batch_computes_in_vain() -> None:
    phases = {
        case.mode: {phase for _, phase, _, _ in stretches(run(case).events)} for case in MODES
    }
    assert phases == {
        "nobatch": {"prefill", "decode"},
        "static": {"prefill", "decode", "held"},
        "dynamic": {"prefill", "decode"},
    }


def test_the_picture_of_a_policy_compares_that_of_its_page_with_the_default(tmp_path: Path) -> None:
    waiting = [Shown(1, service_class="deferred"), Shown(2)]
    plans = [case.policy().plan(view(waiting, now_s=1.0, limit=1)) for case in CASES]
    assert [[step.request.id for step in plan.advance] for plan in plans] == [[1], [2]]
    trace = run(CASES[1], DEFERRED)
    classes = [inference.service_class for inference in trace.inferences]
    assert classes.count("deferred") == len(DEFERRED)
    draw([trace, trace], tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


@given(st.lists(st.sampled_from(["begin", "end"]), max_size=20))
def test_each_instant_of_a_thread_counts_for_the_innermost_call(moves: list[str]) -> None:
    """A random tree of calls: at second t the one that began last, and has not ended, runs."""
    begun: list[int] = []
    spans: list[Span] = []
    expected: list[tuple[int, str]] = []
    for second, move in enumerate([*moves, *["end"] * len(moves)]):
        if move == "begin":
            begun.append(second)
        elif begun:
            start_s = begun.pop()
            spans.append(Span(str(start_s), 0, start_s, second))
        if begun:
            expected.append((second, str(begun[-1])))
    found = [
        (second, span.name)
        for span in innermost(spans)
        for second in range(round(span.start_s), round(span.end_s))
    ]
    assert sorted(found) == expected


def test_a_token_passes_every_stop_of_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_token, "REQUESTS", 1)
    monkeypatch.setattr(one_token, "TOKENS", 6)
    (sent,), spans = one_token.measure()
    tokens = decodes(sent, spans)
    assert len(tokens) == 4, "neither the first, a prefill, nor the last"
    assert all(once(sent, spans).spent_s(name) > 0 for name in ONCE)
    for token in tokens:
        assert all(token.spent_s(name) > 0 for name in EACH if name != "client")
        assert all(token.start_s <= span.start_s <= token.end_s for span in token.spans)
