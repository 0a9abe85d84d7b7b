"""A workload's deferred requests as one job, on a real server, and on one that has a bad time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from urllib3 import HTTPResponse

from client.client import main
from client.load import deferred
from client.load.deferred import JobRun, split
from client.load.http.target import parse_target
from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from tests.support.process import closed_at_end, serving
from tests.support.upstream import ScriptedUpstream

LATER = split(make(Recipe(requests=50, rate=1.0, deferred_share=0.5)))[1]


@pytest.mark.parametrize("stored", [True, False])
def test_the_deferred_ones_become_a_job_beside_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, stored: bool
) -> None:
    """If the server has the API; otherwise the report says why not."""
    options = {} if stored else {"data_dir": "/dev/null/not-a-folder"}
    with serving(tmp_path, hash_model={"step_s": 0.001}, **options) as server:
        status = main(
            [
                "--target", server.url, "--numsamples", "30", "--rate", "100", "--output-tokens",
                "choice:5", "--deferred-as-batch", "--deferred-share", "0.5", "--deadline-s",
                "599.5", "--json",
            ]
        )  # fmt: skip
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    job = figures["deferred_job"]
    assert job["lines"] + figures["planned"] == 30
    assert figures["ok"] == figures["planned"] > 0
    assert figures["deferred"] == 0  # none was sent live
    assert job["window"] == "600s", "their last deadline"
    if not stored:
        assert status == 1
        assert "HTTP 503" in job["error"]
        return
    assert status == 0
    assert job["completed"] == job["lines"] > 0
    assert job["output_tokens"] == 5 * job["lines"]
    assert job["deadline_met"]


def test_there_must_be_both_kinds_and_an_api_for_batches() -> None:
    for share in (0.0, 1.0):
        with pytest.raises(SpecError, match="deferred-share"):
            split(make(Recipe(requests=10, rate=1.0, deferred_share=share)))
    with pytest.raises(SpecError, match="TGI"):
        JobRun(parse_target("tgi+http://localhost:1"), LATER)


@pytest.mark.parametrize("said", ["86400", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_delays_a_question_about_a_job_by_a_minute_at_most(said: str) -> None:
    refusal = HTTPResponse(headers={"Retry-After": said}, status=503)
    assert deferred.RETRIES.get_retry_after(refusal) == 60


POLL, CANCEL = "GET /v1/batches/b", "POST /v1/batches/b/cancel"
BAD = [(status, "none") for status in (503, 429, 502, 408, 500, 504)]


@pytest.mark.parametrize(
    ("polls", "cancels", "ended"),
    [
        ([*BAD, (200, "in_progress"), *BAD, (200, "completed")], [], "completed"),
        ([(404, "none")], [], "lost"),
        ([(503, "none")], [], "lost"),
        ([(200, "validating")] * 3 + [(200, "completed")], [(503, ""), (400, "")], "completed"),
        ([(200, "validating"), (200, "cancelling"), (200, "cancelled")], [(200, "")], "cancelled"),
    ],
)
def test_a_job_outlasts_a_bad_time_and_a_refusal_ends_it(
    monkeypatch: pytest.MonkeyPatch,
    polls: list[tuple[int, str]],
    cancels: list[tuple[int, str]],
    ended: str,
) -> None:
    """The server answers with these states, the last for ever."""
    monkeypatch.setattr(deferred, "POLL_S", 0.001)
    monkeypatch.setattr(deferred, "RETRIES", deferred.RETRIES.new(backoff_factor=0))
    scripts, heard = {POLL: polls, CANCEL: cancels}, set[str]()

    def answer(asked: str, _: bytes) -> tuple[int, object]:
        heard.add(asked)
        script = scripts.get(asked, [(200, "validating")])
        status, state = script.pop(0) if len(script) > 1 else script[0]
        return status, {"id": "b", "status": state, "request_counts": {"completed": 9}}

    server = closed_at_end(ScriptedUpstream(answers=answer).start())
    job = JobRun(parse_target(server.url), LATER)
    job.start()
    found = job.end(cancel=bool(cancels))
    assert (found.status, found.window) == (ended, "24h"), "none of them has a deadline"
    assert (CANCEL in heard) == bool(cancels)
    assert (found.error is None) == (ended != "lost")
    assert found.completed == (0 if ended == "lost" else 9)
