"""What a single run's report states, marks and leaves out."""

from __future__ import annotations

from pathlib import Path

from client.analysis.gates import SATURATED, judge
from client.analysis.metrics import measure
from client.load.records import Run
from client.report.run import OneRun, run_figures, run_text, write_run_page
from tests.client.analysis.made import outcome, run_of, steady


def reported(run: Run) -> OneRun:
    measured = measure(run)
    return OneRun(run, measured, judge(run, measured), None, None, None, None, None, {})


def test_a_saturated_run_shows_no_tpot_which_would_be_of_the_quickest() -> None:
    queue = steady([outcome(i, at=i * 0.1, first=0.05 + i * 0.1, gap=0.001) for i in range(100)])
    one = reported(queue)
    assert one.verdict.word == SATURATED
    assert "TPOT" not in run_text(one)
    assert "tpot" not in run_figures(one)["latency_s"]
    calm = reported(steady([outcome(i, at=i * 0.1) for i in range(100)]))
    assert "TPOT" in run_text(calm)


def test_a_figure_that_a_late_client_falsified_is_shown_marked_with_reason_and_advice(
    tmp_path: Path,
) -> None:
    sent = [i * 0.1 + (0.02 if i % 5 == 0 else 0.0005) for i in range(100)]
    late = run_of([outcome(i, at=i * 0.1, sent=at, first=0.05) for i, at in enumerate(sent)])
    one = reported(late)
    (ttft,) = [line for line in run_text(one).splitlines() if line.startswith("TTFT")]
    assert ttft.count("50 ms*") == 2
    assert "50 ms " in ttft, "the median is none of them"
    assert "* void: the client was 20 ms late at p95; end other programs" in run_text(one)
    write_run_page(tmp_path / "report.html", one)
    page = (tmp_path / "report.html").read_text()
    assert "its figures are valid, except those marked *." in page
    assert run_figures(one)["void"] == ["ttft_p90", "ttft_p95"]
