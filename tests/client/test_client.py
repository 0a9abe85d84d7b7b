"""The command line as a user types it."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from client.client import main
from client.load.http.target import Target
from client.load.machine import ROOT
from client.load.records import RawError, read_raw
from client.report.__main__ import main as report
from client.selftest import self_test
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import write_workload


def test_one_prompt_prints_its_completion_from_the_server_that_ip_and_port_name(
    target: Target,
) -> None:
    """As a user types it."""
    port = str(urlsplit(target.url).port)
    done = subprocess.run(
        [sys.executable, ROOT / "client/client.py", "--prompt", "hi", "--numtokens", "4"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "IP": "127.0.0.1", "PORT": port},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hi a a a a\n"


def test_the_python_of_the_page_on_measuring_runs(
    target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "measuring.md").read_text().replace("requests=200", "requests=20")
    pictures, tagged, per_user = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(pictures.replace("results/", f"{ROOT}/results/"), {})
    assert len([*tmp_path.glob("figure*.svg")]) >= 3
    exec(tagged, {})
    assert main(["--workload", "tagged.jsonl", "--target", target.url, "--out", "kept"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["per_user.py", "kept"])
    exec(per_user, {})
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == ["batch", "chat", "largest service gap"]


def test_samples_are_sent_and_the_servers_stats_are_printed(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--numsamples", "12", "--wait", "0.05", "--target", target.url]
    assert main(quick) == 0
    told = capsys.readouterr().out
    assert "12 ok, 0 failed, 0 unfinished of 12" in told
    assert "/stats: " in told
    own = "server: mode dynamic, model sleep, f4, This model only sleeps., on H200, Xeon, 16 cores"
    assert own in told.splitlines()
    lines = told.splitlines()
    assert len(lines) <= 15, "the result fits on a screen"
    assert lines[-1].startswith(("VALID", "SATURATED: backlog")), "a busy machine serves late"
    assert main([*quick, "--json"]) == 0, "a second run closes its books, too"
    books = json.loads(capsys.readouterr().out)["gates"]["token conservation"]
    assert "counted by the server" in books["found"]
    assert books["verdict"] == "VALID"


def test_a_workload_file_is_played_and_reported(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(
        requests=30, rate=60.0, arrivals="plan:high", prompts="request",
        output_tokens="uniform:1,9", deferred_share=0.5, deadline_s=30.0,
    )  # fmt: skip
    made = make(recipe)
    write_workload(made, tmp_path / "w.jsonl")
    out = tmp_path / "out"
    main(
        ["--workload", str(tmp_path / "w.jsonl"), "--target", target.url, "--out", str(out),
         "--json", "--slo", "ttft:5s,e2e:9s", "--warmup", "0.05"]
    )  # fmt: skip
    figures = json.loads(capsys.readouterr().out)
    assert figures["workload_sha256"] == made.sha256
    assert figures["ok"] == 30
    assert figures["warm_up_s"] == 0.05
    assert figures["objectives_attained"] == 1.0
    assert figures["deadlines_met"] == figures["deferred"] > 0
    written = "report.txt runs.jsonl.gz summary.json requests.csv workload.jsonl"
    assert {p.name for p in out.iterdir()} == set(written.split())
    assert len((out / "requests.csv").read_text().splitlines()) == 31
    text, summary = (out / "report.txt").read_text(), (out / "summary.json").read_text()
    (out / "report.txt").unlink()
    assert report([str(out)]) == 0
    assert (out / "report.txt").read_text() == text, "made again from the raw data"
    assert "This model only sleeps." in text, "as it says of random weights"
    assert (out / "summary.json").read_text() == summary


def test_one_prompt_is_sent_with_its_seed_or_the_fields_of_its_target(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, expected in (("", (7, 10)), ("?seed=8&num_tokens=3", (8, 3))):
        assert main(["--target", target.url + more, "--prompt", "hi", "--seed", "7", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["seed"], answer["num_tokens"]) == expected


def test_the_self_test_measures_the_client_on_a_null_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    self_test(as_json=True, streams=((40, 5),), seconds=1.0)
    line = json.loads(capsys.readouterr().out)["self_test"][0]
    assert line["requests_per_s"] == 40
    assert 5 <= line["streams_at_once"] <= 40
    assert line["verdict"] != "FAILED", "on a busy machine the client or the server may be late"


HEADER = gzip.compress(b"", mtime=0)[:10]


@pytest.mark.parametrize(
    "content", [b"no gzip", None, gzip.compress(b"3\n", mtime=0), HEADER + b"\xff" * 20]
)
def test_a_file_without_runs_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "runs.jsonl.gz").write_bytes(content)
    with pytest.raises(RawError, match=r"runs\.jsonl\.gz"):
        list(read_raw(tmp_path))
