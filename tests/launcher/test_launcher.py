"""The launcher with real processes: a model server, the HTTP server, and their ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import requests

from serving.config import Config
from tests.support.process import PATIENCE_S, Server, environment, eventually, free_port, spawned


@contextmanager
def launched(folder: Path, *options: str) -> Iterator[Server]:
    """`python -m launcher` with the embedded model on a free port."""
    config = Config("dynamic", port=free_port())
    command = [sys.executable, "-m", "launcher", "--port", str(config.port), *options]
    with spawned(folder, config, command, environment()) as server:
        yield server


def children_of(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def ask(server: Server, tokens: int = 8, path: str = "/generate") -> requests.Response:
    asked = {"inputs": "import os", "parameters": {"max_new_tokens": tokens}}
    patience_s = 4 * PATIENCE_S  # a shard may have to start, which takes long beside others
    stream = path != "/generate"
    answer = requests.post(server.url + path, json=asked, timeout=patience_s, stream=stream)
    assert answer.ok, answer.text
    return answer


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
    tmp_path: Path,
) -> None:
    with launched(tmp_path, "--num-shard", "1") as ready:
        eventually(lambda: "launcher | ready on" in ready.log, f"ready, see {ready.log_path}")
        before = ask(ready).json()
        shards = [p for p in children_of(ready) if "model_server" in p.cmdline()]
        max(shards, key=lambda process: process.create_time()).kill()
        assert ask(ready).json() == before  # waits for the new shard, without an error
        children = children_of(ready)
        assert len(children) >= 2
        with ask(ready, 200, "/generate_stream") as answer:
            events = (line for line in answer.iter_lines() if line.startswith(b"data:"))
            next(events)
            os.kill(ready.process.pid, signal.SIGKILL)
            last = json.loads([*events][-1].removeprefix(b"data:"))
        assert last["generated_text"]  # complete: the model works until the server has
        eventually(lambda: ended(children), "the end of all processes")


def test_a_model_that_cannot_be_loaded_ends_the_launcher_with_the_reason(tmp_path: Path) -> None:
    recorded = [tmp_path / name for name in ("run.jsonl", "run-model.jsonl")]
    for path in recorded:
        path.write_text("an earlier run")
    options = ("--model-id", "./no-such-folder", "--record", str(recorded[0]))
    with launched(tmp_path, *options) as server:
        assert server.process.wait(PATIENCE_S) == 1
        assert "ended with status 1 before it was ready" in server.log
        assert "no-such-folder" in server.log
    assert [path.read_text() for path in recorded] == ["an earlier run"] * 2
