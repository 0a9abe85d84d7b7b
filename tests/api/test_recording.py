"""`--record FILE`: a picture of a run can be drawn from it, and nothing waits for it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from records import Arrived, History
from serving.config import Config
from telemetry.recording import Recording
from tests.api.conftest import serving


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["nobatch", "static", "dynamic"])
def test_the_file_contains_every_request_and_adds_up_to_stats(mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with serving(Config(mode=mode, record=str(path), data_dir=str(tmp_path))) as client:
        for tokens in (3, 8):
            body = {"prompt": "hello", "num_tokens": tokens}
            assert client.post("/inference", json=body).status_code == 200
        stats = client.get("/stats").json
        assert stats is not None
    head, *lines = lines_of(path)
    assert (head["type"], head["version"], head["mode"]) == ("head", 1, mode)
    iterations = [line for line in lines if line["type"] == "iteration"]
    assert sum(line["generated"] for line in iterations) == stats["total-tokens-handled"] == 11
    assert len(iterations) == sum(stats["batch-size"]["histogram"].values())
    for request, tokens in enumerate((3, 8)):
        (arrived,) = (e for e in lines if e["type"] == "arrived" and e["request"] == request)
        (ended,) = (e for e in lines if e["type"] == "ended" and e["request"] == request)
        mine = [i for i in iterations if request in [row[0] for row in i["rows"]]]
        kinds = [row[3] for line in mine for row in line["rows"]]
        assert kinds == ["prefill", *["decode"] * (tokens - 1)]
        assert (arrived["max_tokens"], ended["end"], ended["generated"]) == (
            tokens,
            "length",
            tokens,
        )
        ends_s = [line["start_s"] + line["duration_s"] for line in mine]
        assert arrived["at_s"] <= ended["admitted_s"] <= mine[0]["start_s"]
        assert ended["first_token_s"] == pytest.approx(ends_s[0], abs=1e-9)
        assert ended["last_token_s"] == pytest.approx(ends_s[-1], abs=1e-9)
        assert head["clock_s"] <= arrived["at_s"] <= ended["end_s"]


def test_a_full_disk_is_a_warning_and_requests_are_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Config(mode="dynamic", record="/dev/full", data_dir=str(tmp_path))) as client:
        answer = client.post("/inference", json={"prompt": "hello", "num_tokens": 3})
        assert answer.status_code == 200
    assert "--record /dev/full ends here: No space left on device" in [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]


def test_a_file_that_lags_behind_says_how_many_events_are_missing(tmp_path: Path) -> None:
    history = History(2**16)
    for request in range(20):
        history.add(Arrived(request, float(request), 1, 1, "immediate"))
    recording = Recording(tmp_path / "run.jsonl", history, {})
    recording.start()
    recording.stop(60.0)
    _, missed, *kept = lines_of(recording.path)
    assert missed == {"type": "missed", "events": 20 - len(kept)}
    assert [line["request"] for line in kept] == list(range(20 - len(kept), 20))
