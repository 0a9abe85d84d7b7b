"""The commands a newcomer types, as they are typed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.config import MODES, Config
from tests.support.forked import Forked
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


def run(*command: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the Python of the tests, so that nothing is installed."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**{"EB_PYTHON": sys.executable, **env}),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "no-such-model"], "model 'no-such-model' is neither a folder nor a known"),
        (["--model", "/tmp"], "/tmp contains no vocabulary; allowed: vocab.tiktoken"),
        (["--host", "198.51.100.1"], "cannot listen on 198.51.100.1:8500"),
        (["--record", "/nowhere/run.jsonl"], "cannot write /nowhere/run.jsonl (No such file"),
        (["--policy", "nowhere:Mine"], "No module named 'nowhere'"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_starts(
    args: list[str], message: str, tmp_path: Path
) -> None:
    """By what `./server.sh` runs; the next test types the command itself."""
    log = tmp_path / "log"
    assert Forked("app", ["dynamic", *args], environment(), log).wait(2 * PATIENCE_S) != 0
    assert message in log.read_text()
    assert "Traceback" not in log.read_text()


def test_the_command_refuses_what_cannot_work_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases: list[tuple[list[str], list[str]]] = [
            ([], [*MODES, "router"]),
            (["dynamic", "--port", port], [f"cannot listen on 127.0.0.1:{port}"]),
        ]
        for args, told in cases:
            done = run(SERVER, *args)
            assert done.returncode != 0
            assert all(message in done.stderr for message in told)
            assert "Traceback" not in done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, Path]:
    """The command in a clone, and an empty folder for programs."""
    (tmp_path / "scripts").mkdir()
    for name in ("server.sh", "scripts/venv.sh", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    tools = tmp_path / "tools"
    tools.mkdir()
    return tmp_path / "server.sh", tools


def write_python(tools: Path, script: str) -> None:
    (tools / "python3").write_text(f"#!/bin/sh\n{script}\n")
    (tools / "python3").chmod(0o755)


def test_a_missing_or_outdated_python_is_reported_clearly(clone: tuple[Path, Path]) -> None:
    """A PATH with the tools the script needs, and with a python3 of long ago."""
    command, tools = clone
    for tool in ("bash", "env", "dirname", "cat", "cksum", "flock"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    for python, said in ((None, "not installed"), ("echo Python 3.6.9; exit 1", "Python 3.6.9")):
        if python is not None:
            write_python(tools, python)
        done = run(str(command), "dynamic", EB_PYTHON="", PATH=str(tools))
        assert done.returncode == 1
        for part in ("Python 3.11 or newer is needed", said, "EB_PYTHON"):
            assert part in done.stderr


def test_of_servers_that_start_together_one_installs(clone: tuple[Path, Path]) -> None:
    """A Python that takes a while to install, and fails where two do so at once."""
    command, tools = clone
    busy, log = tools / "busy", tools / "log"
    write_python(
        tools,
        'case "$*" in\n'
        '  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;\n'
        f'  *" pip install "*) mkdir "{busy}" && sleep 0.3 && rmdir "{busy}"'
        f' && echo installed >> "{log}" ;;\n'
        f'  *app.py*) echo served >> "{log}" ;;\n'
        "esac",
    )
    path = f"{tools}:{os.environ['PATH']}"
    with ThreadPoolExecutor() as threads:
        starts = [
            threads.submit(run, str(command), "dynamic", EB_PYTHON="", PATH=path) for _ in range(3)
        ]
    assert [start.result().returncode for start in starts] == [0, 0, 0]
    assert sorted(log.read_text().split()) == ["installed", *["served"] * 3]


def test_what_few_need_is_imported_for_them_alone() -> None:
    """Handlers and gunicorn's own thread run in a process that has not even imported torch, and
    without an endpoint for traces there is nothing of OpenTelemetry."""
    code = (
        "import sys, app, router.service; from serving.config import Config;"
        "from telemetry.tracing import start_tracing; app.create_app(Config('dynamic'));"
        "start_tracing(None, 'x');"
        "print({name.split('.')[0] for name in sys.modules} & {'torch', 'opentelemetry', 'grpc'})"
    )
    assert run(sys.executable, "-c", code).stdout.strip() == "set()"


def test_the_command_serves_and_ctrl_c_ends_all_it_started(tmp_path: Path) -> None:
    """Typed in a folder with a policy next to files named like Python's modules: all that lies
    there comes last among what can be imported."""
    (tmp_path / "mine.py").write_text(
        "from scheduling.policies.orca import Orca\n\nclass Mine(Orca): ...\n"
    )
    for name in ("random", "selectors", "queue", "flask"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not that one')")
    config = Config(mode="dynamic", port=free_port(), policy="mine:Mine")
    options = ["dynamic", "--port", str(config.port), "--policy", config.policy]
    command = ["env", "-C", str(tmp_path), SERVER, *options]
    prompts = ["def main(", "import ", "# 東京\n"]
    with (
        spawned(tmp_path, config, command, environment(EB_PYTHON=sys.executable)) as server,
        clients(len(prompts)) as call,
    ):
        wait_ready(server)
        answers = [call(server.ask, prompt, 8, seed=3) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            body = answer.result().json()
            assert body["num_tokens"] == 8
            assert body["completion"] == prompt + body["generated"]
            assert 0 < body["prompt_tokens"] <= len(prompt.encode())
        stats = server.stats()
        assert (stats["mode"], stats["policy"]) == ("dynamic", "mine:Mine")
        assert stats["model"]["name"] == "embedded"
        assert stats["total-tokens-handled"] == 8 * len(prompts)
        assert 0 < stats["model-share"] <= 1
        assert f"{config.threads} threads" in server.log
        server.interrupt()
        assert server.process.wait(PATIENCE_S) == 0
        assert server.members() == []


@pytest.mark.parametrize(
    ("command", "content", "told"),
    [
        (["server.sh", "router", "--upstreams-file", "mine.txt"], "x", "upstreams file, line 1"),
        (["compare.sh", "--prompts", "lines:mine.txt"], "\n", "mine.txt contains no prompts"),
    ],
)
def test_a_relative_path_is_resolved_where_the_command_is_typed(
    tmp_path: Path, command: list[str], content: str, told: str
) -> None:
    (tmp_path / "mine.txt").write_text(content)
    (tmp_path / "random.py").write_text("raise ImportError('not that one')")
    done = run(str(ROOT / command[0]), *command[1:], cwd=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr
