"""A workload's deferred requests as one job, on a real server."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from client.client import main
from client.load import deferred
from client.load.deferred import JobRun, job_lines, split
from client.load.http.target import parse_target
from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from tests.support.hash_app import STEP_S
from tests.support.process import Server, serving

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
    options = ["--deferred-share", "0.5", "--deadline-s", "599.5", "--out", str(tmp_path)]
    status, figures = played(server, capsys, *options)
    assert status == 0
    job = figures["deferred_job"]
    assert job["lines"] + figures["planned"] == 30
    assert job["completed"] == job["lines"] > 0
    assert job["output_tokens"] == 5 * job["lines"]
    assert figures["ok"] == figures["planned"] > 0
    assert job["deadline_met"]
    assert job["window"] == "600s", "their last deadline"
    assert figures["deferred"] == 0  # none was sent live
    assert "deferred job: completed" in (tmp_path / "report.html").read_text()


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


POLL = "GET /v1/batches/b"
CANCEL = "POST /v1/batches/b/cancel"
NOT_NOW = {"error": "not now"}


def state(status: str) -> dict[str, Any]:
    return {"id": "b", "status": status, "request_counts": {"completed": 9, "failed": 0}}


@contextlib.contextmanager
def following(answer: Callable[[str], tuple[int, object]]) -> Iterator[JobRun]:
    """A job on a server that accepts it and then answers POLL and CANCEL as specified."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = f"{self.command} {self.path}"
            known = asked in (POLL, CANCEL)
            status, said = answer(asked) if known else (200, state("validating"))
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer  # noqa: N815 (names of http.server's)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        _, later = split(make(Recipe(requests=20, rate=1.0, deferred_share=0.5)))
        job = JobRun(parse_target(f"http://127.0.0.1:{server.server_port}"), later)
        job.start()
        yield job
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "POLL_S", 0.001)


@pytest.mark.usefixtures("quick")
def test_a_server_that_passes_through_a_bad_time_keeps_its_job() -> None:
    bad = [(status, NOT_NOW) for status in (503, 429, 502, 408, 500, 504)]
    said = iter([*bad, (200, state("in_progress")), *bad, (200, state("completed"))])
    with following(lambda _: next(said)) as job:
        found = job.end()
    assert (found.status, found.error, found.completed) == ("completed", None, 9)
    assert found.window == "24h", "none of them has a deadline"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("status", "silence_s"), [(503, 0.0), (404, deferred.SILENCE_S)])
def test_a_bad_time_that_lasts_and_a_refusal_are_told(
    monkeypatch: pytest.MonkeyPatch, status: int, silence_s: float
) -> None:
    monkeypatch.setattr(deferred, "SILENCE_S", silence_s)
    said = iter([(status, NOT_NOW)])  # asked once
    with following(lambda _: next(said)) as job:
        found = job.end()
    assert found.status == "lost"
    assert f"HTTP {status}" in str(found.error)


@pytest.mark.usefixtures("quick")
def test_cancelling_outlasts_a_bad_time_and_a_job_that_was_faster() -> None:
    refusals = [(503, NOT_NOW), (400, {"error": "it is completed: it cannot be cancelled"})]

    def answer(asked: str) -> tuple[int, object]:
        if asked == CANCEL:
            return refusals.pop(0)
        return 200, state("in_progress" if refusals else "completed")

    with following(answer) as job:
        found = job.end(cancel=True)
    assert (found.status, found.error) == ("completed", None)
