"""A workload's deferred requests as one job, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.client import main
from client.deferred import job_lines, split
from client.recipe import Recipe, make
from client.spec import SpecError
from client.target import parse_target
from tests.server.hash_app import STEP_S
from tests.server.process import Server, serving

LOAD = ["--numsamples", "30", "--rate", "100", "--output-tokens", "choice:5"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), hash_model={STEP_S: 0.001}) as server:
        yield server


def played(
    server: Server, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    arguments = ["--target", server.url, *LOAD, "--deferred-as-batch", "--json", *options]
    status = main(arguments)
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, figures


def test_the_deferred_ones_become_a_job_beside_the_others(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, figures = played(server, capsys, "--deferred-share", "0.5", "--out", str(tmp_path))
    assert status == 0
    job = figures["deferred_job"]
    assert job["lines"] + figures["planned"] == 30
    assert job["completed"] == job["lines"] > 0
    assert job["output_tokens"] == 5 * job["lines"]
    assert figures["ok"] == figures["planned"] > 0
    assert job["deadline_met"]
    assert job["window"] == "24h"
    assert figures["deferred"] == 0  # none was sent live
    assert "deferred job: completed" in (tmp_path / "report.html").read_text()


def test_its_window_is_their_last_deadline(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--deferred-share", "0.5", "--deadline-s", "599.5"]
    _, figures = played(server, capsys, *options)
    assert figures["deferred_job"]["window"] == "600s"


def test_a_server_without_the_api_is_told(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving(tmp_path, data_dir="/dev/null/not-a-folder") as without:
        status, figures = played(without, capsys, "--deferred-share", "0.5")
    assert status == 1
    assert "HTTP 503" in figures["deferred_job"]["error"]
    assert figures["ok"] == figures["planned"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_there_must_be_both_kinds(share: float) -> None:
    with pytest.raises(SpecError, match="deferred-share"):
        split(make(Recipe(requests=10, rate=1.0, deferred_share=share)))


def test_tgi_has_no_such_api() -> None:
    _, later = split(make(Recipe(requests=50, rate=1.0, deferred_share=0.5)))
    with pytest.raises(SpecError, match="TGI"):
        job_lines(parse_target("tgi+http://localhost:1"), later)
