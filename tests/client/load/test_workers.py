"""Runs that processes of their own play are runs like any other, however many they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from client.analysis.figures import table_of
from client.load.http.exchange import Progress
from client.load.http.target import Target
from client.load.machine import ROOT, divided, policy_sha256
from client.load.records import Run
from client.load.servers.stats import handled, stats
from client.load.workers import Crew, Watcher, WorkerError
from client.workloads.recipe import Recipe, make
from tests.support.process import eventually


def played(target: Target, watch: Watcher | None = None, **recipe: object) -> Run:
    given = {"requests": 40, "rate": 100.0, "output_tokens": "fixed:5", **recipe}
    with Crew(3) as crew:
        return crew.play(make(Recipe(**given)), target, watch=watch)  # type: ignore[arg-type]


def test_several_processes_play_one_workload_between_them(target: Target) -> None:
    run = played(target, arrivals="plan:high", output_tokens="uniform:2,9")
    assert [o.index for o in run.outcomes] == list(range(40))
    assert [o.intended_s for o in run.outcomes] == [r.at_s for r in run.workload.requests]
    asked = [r.output_tokens for r in run.workload.requests]
    assert [o.output_tokens for o in run.outcomes if o.ok] == asked


def test_the_users_of_a_closed_loop_are_shared_and_keep_their_connections(target: Target) -> None:
    found: list[Run] = []
    users: dict[str, Any] = {"arrivals": "closed:users=4", "rate": None}

    def play() -> None:
        found.append(played(replace(target, keep_alive=True), **users))

    thread = threading.Thread(target=play)  # outside the main one, which alone hears of signals
    thread.start()
    thread.join()
    assert len(found[0].outcomes) == 40
    assert all(o.ok for o in found[0].outcomes)
    requests = table_of(found[0].outcomes)
    assert 3 <= requests.in_flight(requests["sent_s"]).max() <= 4


def test_interrupts_of_the_client_end_the_run_and_keep_its_records(target: Target) -> None:
    """A closing terminal sends several. Its processes are in sessions of their own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(progress: Progress) -> None:
        if progress.done >= 5:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        run = played(target, interrupt, requests=400, rate=20.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.interrupted
    assert 5 <= len(run.outcomes) < 400


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_a_client_that_is_ended(target: Target, number: int) -> None:
    """One that is killed cannot end them: they see that it is gone. Two, since each inherits the
    channels of those before it."""
    client = psutil.Popen(
        [sys.executable, ROOT / "client/client.py", "--target", target.url, "--workers", "2",
         "--numsamples", "600", "--wait", "0.1", "--output-tokens", "fixed:3"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    before = handled(stats(target)) or 0
    eventually(lambda: (handled(stats(target)) or 0) > before + 10, "the run")
    its = client.children()
    assert len(its) == 2
    client.send_signal(number)
    text, _ = client.communicate(timeout=30)
    assert client.returncode == (-number if number == signal.SIGKILL else 130), text
    zombie = psutil.STATUS_ZOMBIE  # where nobody adopts orphans
    eventually(lambda: not any(p.is_running() and p.status() != zombie for p in its), "their end")


def workers() -> list[psutil.Process]:
    """Of the crew that plays: ids of processes may begin again, so the newest are not the last."""
    ours = [one for one in multiprocessing.active_children() if one.name == "client"]
    return [psutil.Process(one.pid) for one in ours]


def test_a_dead_process_is_an_error_and_the_others_end_with_it(target: Target) -> None:
    seen: list[psutil.Process] = []

    def kill(_: Progress) -> None:
        seen[:] = seen or workers()
        seen[0].kill()

    with pytest.raises(WorkerError, match="ended with status -9"):
        played(target, kill, requests=400, rate=20.0)
    assert not any(process.is_running() for process in seen)


def test_the_client_comes_before_the_servers_that_it_measures_where_it_may(target: Target) -> None:
    own, seen = os.getpriority(os.PRIO_PROCESS, 0), set[int]()

    def look(_: Progress) -> None:
        seen.update(process.nice() for process in workers())

    played(target, look, requests=40, rate=40.0)
    assert own - 10 in seen or os.geteuid() != 0
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.parametrize(
    ("siblings", "workers", "client", "servers"),
    [
        ([{0}, {1}], 1, (0, 1), (0, 1)),
        ([{0, 4}, {1, 5}, {2, 6}, {3, 7}], 1, (3, 7), (0, 1, 2, 4, 5, 6)),
        ([{0, 4}, {1, 5}, {2, 6}, {3, 7}], 2, tuple(range(8)), tuple(range(8))),
    ],
    ids=["too few", "one of four, with its sibling", "half would be too many"],
)
def test_the_client_has_its_own_cores_if_there_are_enough(
    siblings: list[set[int]], workers: int, client: tuple[int, ...], servers: tuple[int, ...]
) -> None:
    found = divided(siblings, workers)
    assert (found.client, found.servers) == (client, servers)
    assert found.shared == (client == servers)


def test_a_policys_file_is_known_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rules.py").write_text("abc")
    monkeypatch.setenv("EB_POLICY_FOLDER", str(tmp_path))
    published = (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    )
    assert policy_sha256("mine.rules:Policy") == published
    assert [policy_sha256(name) for name in ("vtc", "", "other:Policy")] == [None] * 3
