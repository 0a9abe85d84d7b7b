"""`./compare.sh` and the self-test as they are typed: the servers that they start, what they write,
and that nothing is left of the servers when they end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from client.load.machine import ROOT
from client.load.servers.processes import COMPARED
from tests.client.test_compare import rows
from tests.support.process import environment, eventually

REQUESTS = 6
QUICK = ("--loads", "1", "--output-tokens", "uniform:1,16", "--calibrate-s", "0.5", "--no-control")
PATIENT = ("--drain-s", "300")  # however slow the machine is, every answer is awaited


@contextlib.contextmanager
def running(*command: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """With the Python of the tests; told to end where the test fails before its end."""
    output = subprocess.PIPE if terminal is None else terminal
    process = subprocess.Popen(
        command, env=environment(EB_PYTHON=sys.executable), cwd=ROOT, text=True,
        stdin=terminal, stdout=output, stderr=output,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def compare(folder: Path, *options: str) -> tuple[str, ...]:
    return (str(ROOT / "compare.sh"), *QUICK, *PATIENT, "--out", str(folder), *options)


def documented_files() -> set[str]:
    """What results/README.md says that a comparison writes."""
    page = (ROOT / "results" / "README.md").read_text()
    table = page.partition("| file | content | kept here |\n")[2].partition("\n\n")[0]
    return set(re.findall(r"`([^`]+)`", "".join(row.split("|")[1] for row in table.splitlines())))


def test_the_command_compares_the_three_modes_and_writes_what_is_documented(tmp_path: Path) -> None:
    options = ("--seeds", "1", "--numsamples", str(REQUESTS))
    with running(*compare(tmp_path, *options)) as process:
        out, log = process.communicate()
    assert process.returncode == 0, log
    assert out.rstrip().endswith(f"{tmp_path}/report.html")
    written = {path.name + "/" * path.is_dir() for path in tmp_path.iterdir()}
    assert written == documented_files() - {"logs/"}  # those are kept when a server fails

    points = rows(tmp_path / "summary.csv")
    assert sorted(point["system"] for point in points) == sorted(COMPARED)
    for point in points:
        assert (point["ok"], point["failed"], point["unfinished"]) == (str(REQUESTS), "0", "0")
    runs: dict[str, list[dict[str, str]]] = {}
    for row in rows(tmp_path / "requests.csv"):
        runs.setdefault(row["run"], []).append(row)
    # a run for which the client was late is there twice
    assert {run.removesuffix("-try1") for run in runs} == {f"{m}-load1-seed0" for m in COMPARED}
    for requests in runs.values():
        assert sorted(int(row["request"]) for row in requests) == list(range(REQUESTS))
        for row in requests:
            assert (row["failure"], row["output_tokens"]) == ("", row["requested_tokens"])
            assert float(row["sent_s"]) <= float(row["first_token_s"]) <= float(row["end_s"])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert {name: said["mode"] for name, said in manifest["servers"].items()} == {
        name: name.partition(":")[0] for name in COMPARED
    }
    waits = {name: said["options"]["max_wait_ms"] for name, said in manifest["servers"].items()}
    assert (waits["static"], waits["static:nowait"]) == (50.0, 0.0)
    assert {said["model"]["name"] for said in manifest["servers"].values()} == {"embedded"}


def none_is_left(servers: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(servers, timeout=60)
    assert not alive


ENDLESS = ("--modes", "dynamic", "--seeds", "500", "--numsamples", "3")


@pytest.mark.parametrize("closed", [False, True], ids=["Ctrl-C", "a terminal that is closed"])
def test_an_interrupt_reports_what_was_measured_and_leaves_no_process(
    tmp_path: Path, closed: bool
) -> None:
    ours, theirs = os.openpty()
    command = ("setsid", "--ctty", *compare(tmp_path, *ENDLESS))
    with (
        open(ours, errors="replace") as screen,
        running(*command, terminal=theirs) as process,
    ):
        os.close(theirs)
        told = ""
        for line in screen:
            told += line
            if "[2/" in told:  # a second run
                break
        servers = psutil.Process(process.pid).children(recursive=True)
        assert len(servers) >= 2, f"gunicorn and its worker are expected: {told}"
        if closed:
            screen.close()
        else:
            os.write(ours, b"\x03")
            with contextlib.suppress(OSError):  # the end of what is on the screen
                for line in screen:
                    told += line
        process.wait()
    if not closed:
        assert process.returncode == 130, told
        assert "report.html" in told
    assert rows(tmp_path / "requests.csv")
    assert (tmp_path / "report.html").exists()
    none_is_left(servers)


def test_sigterm_ends_the_self_test_and_its_server_as_ctrl_c_does() -> None:
    with running(sys.executable, "-m", "client.client", "--self-test") as process:
        client = psutil.Process(process.pid)
        # the load is sent by processes of its own
        eventually(
            lambda: sum(len(p.net_connections()) for p in client.children(recursive=True)) > 40,
            "streams that run",
        )
        servers = client.children(recursive=True)
        assert servers
        process.terminate()
        _, told = process.communicate()
    assert process.returncode == 130, told
    assert "requests/s of" not in told, "a rate that was cut"
    none_is_left(servers)
