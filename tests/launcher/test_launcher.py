"""The launcher with real processes: a model server, the HTTP server, and their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from launcher.config import read
from launcher.launcher import model_server
from tests.support.process import PATIENCE_S, eventually, free_port

ROOT = Path(__file__).parents[2]


class Launched:
    """`python -m launcher` with the embedded model on a free port."""

    def __init__(self, log_path: Path, *options: str) -> None:
        self.port = free_port()
        self._log_path = log_path
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launcher", "--port", str(self.port), *options],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def ready(self) -> None:
        def said_so() -> bool:
            assert self.process.poll() is None, self.log
            return "launcher | ready on" in self.log

        eventually(said_so, f"ready, see {self._log_path}")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def generate(self) -> dict[str, Any]:
        answer = requests.post(
            f"http://127.0.0.1:{self.port}/generate",
            json={"inputs": "import os", "parameters": {"max_new_tokens": 8}},
            timeout=4 * PATIENCE_S,  # a shard may have to start, which takes long beside others
        )
        assert answer.ok, answer.text
        fields: dict[str, Any] = answer.json()
        return fields

    @contextmanager
    def stream(self, tokens: int) -> Iterator[Iterator[dict[str, Any]]]:
        with requests.post(
            f"http://127.0.0.1:{self.port}/generate_stream",
            json={"inputs": "import os", "parameters": {"max_new_tokens": tokens}},
            timeout=PATIENCE_S,
            stream=True,
        ) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith(b"data:"))
            yield (json.loads(line.removeprefix(b"data:")) for line in lines)


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    launched = Launched(tmp_path / "log", "--num-shard", "1")
    left = [psutil.Process(launched.process.pid)]
    try:
        launched.ready()
        left += launched.children()
        yield launched
    finally:
        for process in left:
            if process.is_running():
                process.kill()
        launched.process.wait()


@pytest.mark.long
def test_sigterm_ends_all_in_order(launched: Launched) -> None:
    assert launched.generate()["generated_text"]
    children = launched.children()
    launched.process.send_signal(signal.SIGTERM)
    assert launched.process.wait(PATIENCE_S) == 0
    assert not any(child.is_running() for child in children)
    told = [line for line in launched.log.splitlines() if "is asked to end within" in line]
    assert [line.split()[2] for line in told] == ["server", "model-server"]


def ended(processes: list[psutil.Process]) -> bool:
    """Zombies count as ended: without the launcher, init reaps them, late or, in some containers,
    never."""

    def runs(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # it ended between the two questions
            return False

    return not any(map(runs, processes))


def test_a_dead_shard_is_started_again_and_a_killed_launcher_leaves_no_process(
    launched: Launched,
) -> None:
    before = launched.generate()
    shards = [p for p in launched.children() if "model_server" in p.cmdline()]
    max(shards, key=lambda process: process.create_time()).kill()
    assert launched.generate() == before  # waits for the new shard, without an error
    children = launched.children()
    assert len(children) >= 2
    with launched.stream(tokens=200) as events:
        next(events)
        os.kill(launched.process.pid, signal.SIGKILL)
        assert [*events][-1]["generated_text"]  # complete: the model works until the server has
    eventually(lambda: ended(children), "the end of all processes")


def test_a_model_that_cannot_be_loaded_ends_the_launcher_with_the_reason(tmp_path: Path) -> None:
    recorded = [tmp_path / name for name in ("run.jsonl", "run-model.jsonl")]
    for path in recorded:
        path.write_text("an earlier run")
    options = ("--model-id", "./no-such-folder", "--record", str(recorded[0]))
    launched = Launched(tmp_path / "log", *options)
    try:
        assert launched.process.wait(PATIENCE_S) == 1
    finally:
        launched.process.kill()
    assert "ended with status 1 before it was ready" in launched.log
    assert "no-such-folder" in launched.log
    assert [path.read_text() for path in recorded] == ["an earlier run"] * 2


def test_server_and_model_server_record_into_files_of_their_own(tmp_path: Path) -> None:
    config, server = read(["--record", str(tmp_path / "run.jsonl")], {})
    model = model_server(config, server, "unix:/model")
    assert (server.record, model.record) == (
        str(tmp_path / "run.jsonl"),
        str(tmp_path / "run-model.jsonl"),
    )
