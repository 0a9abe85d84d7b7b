"""A server that is down, silent, answers garbage or dies ends in a report that says so.

What was measured until then is kept: by the client, by the comparison and by the search for
capacity. Real servers over real sockets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client import capacity, client, compare
from client.analysis.comparison.summary import measured_together
from client.analysis.metrics import Objectives
from client.capacity import Findings, SearchError
from client.comparison.fleet import Fleet
from client.comparison.runs import carry_out, knee
from client.load.http.target import Target, parse_target
from client.load.servers.processes import System
from client.workloads.recipe import Recipe
from tests.client.analysis.made import outcome, run_of
from tests.client.conftest import StartServer, system
from tests.client.test_compare import planned

DOWN = "http://127.0.0.1:1"
RECIPE = Recipe(requests=20, prompts="request", output_tokens="uniform:1,9", exact_duration=True)
Faulty = Callable[..., str]
Played = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def played(capsys: pytest.CaptureFixture[str]) -> Played:
    """What client.py makes of a server: its exit status and its figures."""

    def play(url: str, *options: str) -> tuple[int, dict[str, Any]]:
        status = client.main(
            [
                "--target", url, "--numsamples", "12", "--rate", "100", "--prompts", "request",
                "--numtokens_range", "3", "--timeout-s", "3", "--json", *options,
            ]
        )  # fmt: skip
        return status, json.loads(capsys.readouterr().out)

    return play


@pytest.mark.parametrize(
    ("fault", "words", "at_once"),
    [
        ("html", "expected, not text/html: <html> <b>Welcome</b>", "HTTP 200 and text/html"),
        ("not-json", "not a response of this API: JSONDecodeError", None),
        ("wrong-shape", "not a response of this API", None),
        ("wrong-types", "ttft_s should be seconds, not 'soon'", None),
        ("endless-line", "a line of the stream is longer than", None),
        ("broken", "ClientPayloadError", None),
        ("silent", "timed out: no data for 3 s", "does not respond"),
        ("falls-silent", "timed out: no data for 3 s", None),
        ("loading", "HTTP 503", "HTTP 503 and application/json"),
    ],
)
def test_responses_before_a_server_failed_are_kept(
    faulty: Faulty, played: Played, fault: str, words: str, at_once: str | None
) -> None:
    """To one that fails ``at_once`` no load is sent."""
    status, figures = played(faulty(fault, after=6))  # one of them to see if it streams
    assert (status, figures["verdict"]) == (1, "FAILED")
    assert words in figures["reason"]
    assert (figures["ok"], figures["failed"], figures["output_tokens"]) == (5, 7, 15)
    if at_once is not None:
        status, figures = played(faulty(fault))
        assert (status, figures["verdict"]) == (1, "FAILED")
        assert "none of 12 was sent" in figures["reason"]
        assert at_once in figures["reason"]
        assert figures["ok"] == figures["failed"] == 0


@pytest.mark.parametrize("options", [(), ("--no-stream", "--slo", "e2e:1s")])
@pytest.mark.parametrize("kind", ["", "openai+", "tgi+"])
def test_a_server_that_is_down_is_reported(
    played: Played, kind: str, options: tuple[str, ...]
) -> None:
    status, figures = played(f"{kind}{DOWN}", *options)
    assert (status, figures["verdict"]) == (1, "FAILED")
    assert "http://127.0.0.1:1 does not respond: " in figures["reason"]


def test_wrong_stats_harm_no_measurement(faulty: Faulty, played: Played) -> None:
    status, figures = played(faulty("wrong-stats", after=100))
    assert status == 0
    assert figures["ok"] == 12
    assert "counted" not in figures["gates"]["token conservation"]["found"]


def test_a_prompt_without_an_answer_is_an_error(
    faulty: Faulty, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (DOWN, *map(faulty, ("html", "silent", "loading"))):
        assert client.main(["--target", url, "--prompt", "a", "--timeout-s", "1"]) == 1
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("together", [True, False])
def test_a_mode_that_does_not_start_or_dies_is_left_out_and_the_others_go_on(
    tmp_path: Path, *, together: bool
) -> None:
    dying = system("static", die_after=12)
    three = (system("nobatch", base_s="never"), dying, system("dynamic"))
    asked = planned(tmp_path, three, seeds=(0, 1), drain_s=5.0, together=together)
    with Fleet(RECIPE, tmp_path, 60.0, together=together) as fleet:
        results, lost = list(carry_out(asked, fleet, capacity=30.0)), fleet.lost
    assert [*lost] == ["nobatch", "static"], "none is started again"
    assert "ended with status 2 before it was ready" in lost["nobatch"].headline
    assert "invalid float value: 'never'" in lost["nobatch"].reason
    assert "its process ended with status -9" in lost["static"].reason
    died = [r for r in measured_together(results, None) if r.job.system == "static"]
    assert died[-1].verdict.word == "FAILED"
    assert 0 < sum(o.ok for r in died for o in r.run.outcomes) <= 12
    others = [r for r in results if r.job.system != "static"]
    assert [r.job.system for r in others] == ["dynamic"] * 4
    assert all(o.ok for r in others for o in r.run.outcomes)


def compared(out: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    status = compare.main(
        [
            "--modes", "", "--prompts", "request", "--output-tokens", "fixed:3", "--calibrate-s",
            "0.2", "--loads", "1,2", "--seeds", "2", "--numsamples", "4", "--no-control",
            "--out", str(out), *options,
        ]
    )  # fmt: skip
    figures = json.loads((out / "summary.json").read_text())
    return status, figures, (out / "report.html").read_text()


def test_a_comparison_names_who_failed_and_compares_the_rest(
    faulty: Faulty, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first system, to which all refers, among those that fail.

    Five requests find a server ready; the next, which look for its limit, hear nothing of use.
    """
    status, figures, page = compared(
        tmp_path, "--target", f"down={DOWN}", "--target", f"good={target.url}",
        "--target", f"page={faulty('html')}", "--target", f"later={faulty('html', after=5)}",
    )  # fmt: skip
    assert status == 1
    assert [loss["system"] for loss in figures["lost"]] == ["down", "page", "later"]
    assert figures["capacity"]["baseline"] == "good"
    points = {(p["system"], p["load"]): p for p in figures["points"]}
    assert points["good", 1.0]["failed"] == points["good", 2.0]["failed"] == 0
    assert {name for name, _ in points} == {"good"}
    assert "down failed while its capacity was measured: http://127.0.0.1:1 does not" in page
    assert "page failed before the first run" in page
    assert "later failed before the first run" in page
    assert "Ratios and loads refer to good, as down failed." in page
    table = capsys.readouterr().out
    assert sum("page " in line and line.endswith("FAILED") for line in table.splitlines()) == 2


def test_a_comparison_of_which_nobody_answers_still_ends_in_a_report(
    server: StartServer, tmp_path: Path
) -> None:
    # 17 requests to calibrate, and some of those that find its limit.
    url = server("dynamic", base_s=0.02, die_after=37).url
    targets = "--target", f"one={url}", "--target", f"shut=openai+{DOWN}"
    status, figures, page = compared(tmp_path, *targets, "--loads", "auto")
    assert status == 1
    assert figures["points"] == []
    assert [loss["system"] for loss in figures["lost"]] == ["one", "shut"]
    assert figures["capacity"] is not None
    assert "No runs could be compared." in page
    assert "one failed before the first run" in page


def test_a_search_whose_server_dies_keeps_what_was_tried(
    server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    # 17 requests to calibrate, and some of those that find its limit.
    target = server("dynamic", base_s=0.02, die_after=37)
    status = capacity.main(
        [
            "--target", target.url, "--prompts", "request", "--output-tokens", "fixed:3",
            "--requests", "12", "--seeds", "1", "--calibrate-s", "0.2", "--slo", "ttft:50ms",
            "--json",
        ]
    )  # fmt: skip
    figures = json.loads(capsys.readouterr().out)
    assert status == 1
    assert figures["verdict"] == "FAILED"
    assert "does not respond" in figures["reason"]
    assert figures["alone"]["requests"] == 8
    assert figures["recipe"]["output_tokens"] == "fixed:3"


def test_a_server_that_refuses_what_is_too_much_fails_that_rate_only(
    faulty: Faulty, tmp_path: Path
) -> None:
    system = System("busy", None, parse_target(faulty("busy", after=4)))  # it is made warm by four
    found = Findings(system, RECIPE, Objectives(ttft_s=60.0), 0.9, 0.05)
    with Fleet(RECIPE, tmp_path, 60.0, together=True) as fleet:
        assert not capacity.probe(found, fleet, 12, None, 0, 5000.0)
    assert [p.verdict for p in found.probes] == ["FAILED"]


def test_a_server_that_hides_when_its_tokens_came_is_searched_by_e2e_only() -> None:
    system = System("t", None, parse_target("tgi+http://127.0.0.1:1"))
    found = Findings(system, RECIPE, Objectives(ttft_s=1.0, e2e_s=60.0), 0.9, 0.05)
    run = run_of([outcome(i, at=i * 0.1, unplaced=5) for i in range(100)])
    fleet: Any = SimpleNamespace(play=lambda *_, **__: run, server=lambda _: None, words=None)
    with pytest.raises(SearchError, match="without an event"):
        capacity.probe(found, fleet, 12, None, 0, 50.0)
    found.objectives = Objectives(e2e_s=60.0)
    assert capacity.probe(found, fleet, 12, None, 0, 50.0)


def test_a_limit_is_measured_for_longer_until_tokens_arrive(tmp_path: Path) -> None:
    with Fleet(RECIPE, tmp_path, 60.0, together=True) as fleet:
        assert knee(system("dynamic", base_s=0.1), fleet, 0.05) > 0
