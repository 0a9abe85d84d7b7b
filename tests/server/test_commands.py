"""The commands a newcomer types, as they are typed, and their options: one definition for command
line, environment, help and errors."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import app
from serving.config import Config
from tests.support.process import (
    PATIENCE_S,
    ROOT,
    clients,
    environment,
    free_port,
    spawned,
    wait_ready,
)

SERVER = str(ROOT / "server.sh")


def test_options_that_cannot_work_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what `./server.sh` runs; the next tests type the command itself."""
    monkeypatch.setenv(app.POLICY_FOLDER, str(ROOT))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it starts"))
    for option, value, message in (
        ("--model", "no-such-model", "is neither a folder"),
        ("--model", "/tmp", "/tmp contains no vocabulary; allowed: vocab.tiktoken"),
        ("--host", "198.51.100.1", "cannot listen on 198.51.100.1:8500"),
        ("--record", "/nowhere/run.jsonl", "cannot write"),
        ("--policy", "nowhere:Mine", "No module named 'nowhere'"),
    ):
        monkeypatch.setattr(sys, "argv", ["app.py", "dynamic", option, value])
        with pytest.raises(SystemExit, match=message):
            app.main()


def test_the_command_serves_until_ctrl_c_which_ends_all_it_started(tmp_path: Path) -> None:
    """Typed in a folder with a policy next to files named like Python's modules: all that lies
    there comes last among what can be imported. Under nohup it outlives its terminal."""
    (tmp_path / "mine.py").write_text(
        "from scheduling.policies.orca import Orca\n\nclass Mine(Orca): ...\n"
    )
    for name in ("random", "selectors", "queue", "flask"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not that one')")
    config = Config(mode="dynamic", port=free_port(), policy="mine:Mine")
    options = ["dynamic", "--port", str(config.port), "--policy", config.policy]
    command = ["nohup", "env", "-C", str(tmp_path), SERVER, *options]
    prompts = ["def main(", "import ", "# 東京\n"]
    with (
        spawned(tmp_path, config, command, environment(EB_PYTHON=sys.executable)) as server,
        clients(len(prompts)) as call,
    ):
        wait_ready(server)
        before = server.members()
        assert len(before) == 2
        os.killpg(server.process.pid, signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        answers = [call(server.ask, prompt, 8, seed=3) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            body = answer.result().json()
            assert body["num_tokens"] == 8
            assert body["completion"] == prompt + body["generated"]
            assert 0 < body["prompt_tokens"] <= len(prompt.encode())
        stats = server.stats()
        assert (stats["mode"], stats["policy"]) == ("dynamic", "mine:Mine")
        assert stats["model"]["name"] == "embedded"
        assert server.members() == before
        server.interrupt()
        assert server.process.wait(PATIENCE_S) == 0
        assert server.members() == []


def test_the_three_modes_start_with_one_command_and_end_together(tmp_path: Path) -> None:
    first = free_port(3)
    environ = environment(EB_PYTHON=sys.executable, EB_PORT=str(first), DATA_DIR=str(tmp_path))
    configs = [Config(mode="dynamic", port=first + n) for n in range(3)]
    with spawned(tmp_path, configs[0], [SERVER, "modes"], environ) as server:
        servers = [replace(server, config=config) for config in configs]
        for one in servers:
            wait_ready(one)
        modes = [one.stats()["mode"] for one in servers]
        assert modes == ["dynamic", "static", "nobatch"]
        page, static, nobatch = (one.url for one in servers)
        assert f"{page}/watch?with={nobatch},{static},{page}\n" in server.log
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert server.members() == []
