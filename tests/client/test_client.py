"""The command line as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from client.client import main
from client.recipe import Recipe, make
from client.selftest import self_test
from client.servers import ROOT
from client.workload_file import read_workload, write_workload
from tests.client.conftest import StartServer


def client(
    *options: str, folder: Path = ROOT / "client", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "client.py", *options],
        cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_one_prompt_prints_its_completion_from_the_server_that_ip_and_port_name(
    server: StartServer,
) -> None:
    port = str(urlsplit(server().url).port)
    done = client("--prompt", "hi", "--numtokens", "4", IP="127.0.0.1", PORT=port)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hi a a a a\n"


def test_samples_are_sent_and_the_servers_stats_are_printed(server: StartServer) -> None:
    url = server().url
    done = client("--numsamples", "12", "--wait", "0.05", "--target", url)
    assert done.returncode == 0, done.stderr
    assert "12 ok, 0 failed, 0 unfinished of 12" in done.stdout
    assert '"total-tokens-handled"' in done.stdout
    assert "token conservation     VALID" in done.stdout


def test_a_second_run_against_the_same_server_still_closes_its_books(server: StartServer) -> None:
    url = server().url
    for _ in range(2):
        done = client("--numsamples", "8", "--wait", "0.02", "--target", url, "--json")
        gates = json.loads(done.stdout)["gates"]
        assert "in the server's books" in gates["token conservation"]["found"]
        assert gates["token conservation"]["verdict"] == "VALID"


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        (("--numtokens_range", "3", "5"), {3, 5}),
        (("--selection", "range", "--numtokens_range", "2"), {2}),
        (("--selection", "buckets"), set(range(5, 150, 5))),
    ],
)
def test_the_originals_options_choose_the_lengths(
    server: StartServer, tmp_path: Path, options: tuple[str, ...], allowed: set[int]
) -> None:
    quick = ["--numsamples", "6", "--wait", "0.01", "--target", server().url, "--json"]
    assert main([*quick, "--out", str(tmp_path), *options]) == 0
    assert {r.output_tokens for r in read_workload(tmp_path / "workload.jsonl").requests} <= allowed


def test_a_workload_file_is_played_and_reported(server: StartServer, tmp_path: Path) -> None:
    recipe = Recipe(
        requests=30, rate=60.0, arrivals="plan:high", prompts="request",
        output_tokens="uniform:1,9", deferred_share=0.5, deadline_s=30.0,
    )  # fmt: skip
    made = make(recipe)
    write_workload(made, tmp_path / "w.jsonl")
    out = tmp_path / "out"
    done = client(
        "--workload", str(tmp_path / "w.jsonl"), "--target", server().url, "--out", str(out),
        "--json", "--slo", "ttft:5,e2e:9",
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures["workload_sha256"] == made.sha256
    assert figures["ok"] == 30
    assert figures["objectives_attained"] == 1.0
    assert figures["deadlines_met"] == figures["deferred"] > 0
    written = "report.html over-time.png summary.json requests.csv tokens.csv workload.jsonl"
    assert {p.name for p in out.iterdir()} == set(written.split())
    assert len((out / "requests.csv").read_text().splitlines()) == 31
    tokens = sum(r.output_tokens for r in made.requests)
    lines = (out / "tokens.csv").read_text().splitlines()[1:]
    assert sum(int(line.split(",")[3]) for line in lines) == tokens


def test_a_server_that_dies_midway_ends_in_a_report(server: StartServer, tmp_path: Path) -> None:
    url = server(fault="die", fault_after=5).url
    done = client("--numsamples", "20", "--wait", "0.02", "--target", url, "--out", str(tmp_path))
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "Traceback" not in done.stderr
    assert (tmp_path / "report.html").exists()


def test_a_server_that_is_down_is_named(tmp_path: Path) -> None:
    for options in (("--numsamples", "3"), ("--prompt", "hi")):
        done = client(*options, IP="127.0.0.1", PORT="1")
        assert done.returncode == 1
        assert "http://127.0.0.1:1" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--wait", "0"), "--wait must be"),
        (("--numsamples", "0"), "at least 1"),
        (("--workload", "/nowhere"), "/nowhere: cannot be read"),
        (("--slo", "ttft"), "expected ttft:S"),
        (("--selection", "pareto"), "normal"),
        (("--arrivals", "trace:azure,path=/nowhere"), "cannot be read"),
    ],
)
def test_bad_options_say_what_is_allowed(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--target", "http://127.0.0.1:1", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_the_self_test_measures_the_client_on_a_null_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    self_test(as_json=True, streams=((40, 5),), seconds=1.0)
    line = json.loads(capsys.readouterr().out)["self_test"][0]
    assert line["requests_per_s"] == 40
    assert 5 <= line["streams_at_once"] <= 40
    assert line["verdict"] in ("VALID", "INVALID-CLIENT")
