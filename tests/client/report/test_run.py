"""What a single run's report states, marks and leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from client.analysis.gates import SATURATED
from client.load.records import Run
from client.report.run import Facts, OneRun, judged, run_figures, run_text, write_run_report
from tests.client.analysis.made import outcome, run_of, steady


def reported(run: Run) -> OneRun:
    return judged(run, Facts(None, None, None, None, None, {}))


def test_what_was_checked_is_kept_and_an_interruption_told(tmp_path: Path) -> None:
    cut = replace(steady([outcome(i, at=i * 0.1) for i in range(100)]), interrupted="interrupted")
    write_run_report(tmp_path, one := reported(cut))
    text = (tmp_path / "report.txt").read_text()
    assert "interrupted: figures are of what was measured before" in text
    assert all(gate.name in text and gate.found in text for gate in one.verdict.gates)
    assert cut.counted in text


def test_a_saturated_run_shows_no_tpot_which_would_be_of_the_quickest() -> None:
    queue = steady([outcome(i, at=i * 0.1, first=0.05 + i * 0.1, gap=0.001) for i in range(100)])
    one = reported(queue)
    assert one.verdict.word == SATURATED
    assert "TPOT" not in run_text(one)
    assert "tpot" not in run_figures(one)["latency_s"]
    calm = reported(steady([outcome(i, at=i * 0.1) for i in range(100)]))
    assert "TPOT" in run_text(calm)


def test_a_figure_that_a_late_client_falsified_is_shown_marked_with_reason_and_advice() -> None:
    sent = [i * 0.1 + (0.02 if i % 5 == 0 else 0.0005) for i in range(100)]
    late = run_of([outcome(i, at=i * 0.1, sent=at, first=0.05) for i, at in enumerate(sent)])
    one = reported(late)
    (ttft,) = [line for line in run_text(one).splitlines() if line.startswith("TTFT")]
    assert ttft.count("]*") == 2
    assert "50 ms [50, 50] " in ttft, "the median is none of them"
    assert "* void: the client was 20 ms late at p99; end other programs" in run_text(one)
    assert run_figures(one)["void"] == ["ttft_p90", "ttft_p95", "ttft_p99"]


def test_few_requests_give_figures_with_their_intervals_open_where_n_is_too_small() -> None:
    """The largest of twenty says little of p99, and the median is between two of the order."""
    run = steady([outcome(i, at=i * 0.5, first=0.1 + i * 0.001, gap=0.01) for i in range(20)])
    one = reported(run)
    (ttft,) = [line for line in run_text(one).splitlines() if line.startswith("TTFT")]
    assert "n too small" not in run_text(one)
    assert ttft.split("  ")[-1].strip() == "15", "a quarter is warm-up"
    assert "112 ms [108, 116]" in ttft
    assert "119 ms [118, ∞]" in ttft
    figures = run_figures(one)["latency_s"]["ttft"]
    assert (figures["n"], figures["p99_high"]) == (15, None)
    assert figures["p50_low"] < figures["p50"] < figures["p50_high"]
    assert len(run_text(one).splitlines()) <= 15, "the result fits on a screen"
