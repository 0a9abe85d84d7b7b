"""The commands a newcomer types, as they are typed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from serving.config import MODES, Config
from tests.support.forked import Forked
from tests.support.process import (
    PATIENCE_S,
    ROOT,
    Server,
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


@pytest.mark.parametrize("args", [[], ["fast"], ["--port", "8500"]])
def test_without_a_mode_the_server_prints_its_usage(args: list[str]) -> None:
    done = run(SERVER, *args)
    assert done.returncode == 2
    for mode in (*MODES, "router"):
        assert mode in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "no-such-model"], "model 'no-such-model' is neither a folder nor a known"),
        (["--model", "random:gpt5"], "'random:gpt5' is unknown; allowed: gpt2, gpt2-medium"),
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
    refused(["dynamic", *args], message, tmp_path)


def refused(args: list[str], message: str, folder: Path) -> None:
    log = folder / "log"
    assert Forked("app", args, environment(), log).wait(2 * PATIENCE_S) != 0
    assert message in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_checkpoint_or_a_device_that_is_not_there_ends_the_server(tmp_path: Path) -> None:
    shutil.copy(ROOT / "embedded" / "vocab.tiktoken", tmp_path)
    asked = ["static", "--port", str(free_port())]
    broken = f"{tmp_path}/config.json cannot be read"
    refused([*asked, "--model", str(tmp_path)], broken, tmp_path)
    if not torch.cuda.is_available():
        message = "torch finds no GPU; allowed here: auto, cpu"
        refused([*asked, "--device", "cuda"], message, tmp_path)


def test_the_command_refuses_options_that_cannot_work_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for value, message in (
            ("no", "--port (EB_PORT) is 'no'; allowed: a whole number"),
            (port, f"cannot listen on 127.0.0.1:{port}"),
        ):
            done = run(SERVER, "dynamic", "--port", value)
            assert done.returncode != 0
            assert message in done.stderr
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


def test_nothing_but_the_engine_thread_needs_torch() -> None:
    """Handlers and gunicorn's own thread run in a process that has not even imported it."""
    code = (
        "import sys, app; from serving.config import Config; app.create_app(Config('dynamic')); "
        "print('torch' in sys.modules)"
    )
    assert run(sys.executable, "-c", code).stdout.strip() == "False"


def test_a_custom_policy_is_found_next_to_files_named_like_pythons_modules(
    tmp_path: Path,
) -> None:
    """All that lies where the command was typed comes last among what can be imported."""
    (tmp_path / "mine.py").write_text(
        "from scheduling.policies.orca import Orca\n\nclass Mine(Orca): ...\n"
    )
    for name in ("random", "selectors", "queue", "flask"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not that one')")
    config = Config(mode="dynamic", port=free_port(), policy="mine:Mine")
    options = ["dynamic", "--port", str(config.port), "--policy", config.policy]
    command = ["env", "-C", str(tmp_path), SERVER, *options]
    with spawned(tmp_path, config, command, environment(EB_PYTHON=sys.executable)) as server:
        wait_ready(server)
        assert server.stats()["policy"] == "mine:Mine"
        assert server.ask("x", 1).status_code == 200


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


@pytest.fixture(
    scope="module",
    params=[
        "dynamic",
        *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES if mode != "dynamic"),
    ],
)
def embedded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`./server.sh MODE` with the embedded model."""
    config = Config(mode=request.param, port=free_port())
    folder = tmp_path_factory.mktemp("embedded")
    command = [SERVER, request.param, "--port", str(config.port)]
    with spawned(folder, config, command, environment(EB_PYTHON=sys.executable)) as server:
        wait_ready(server)
        yield server


def test_the_command_serves_the_embedded_model(embedded: Server) -> None:
    prompts = ["def main(", "import ", "class Node:\n    def __init__(self", "# 東京\n"]
    with clients(len(prompts)) as call:
        answers = [call(embedded.ask, prompt, 8, seed=3) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            body = answer.result().json()
            assert body["num_tokens"] == 8
            assert body["completion"] == prompt + body["generated"]
            assert 0 < body["prompt_tokens"] <= len(prompt.encode())
    stats = embedded.stats()
    assert stats["mode"] == embedded.config.mode
    assert stats["model"]["name"] == "embedded"
    assert stats["total-tokens-handled"] == 4 * 8
    assert 0 < stats["model-share"] <= 1
    assert f"{embedded.config.threads} threads" in embedded.log


def test_ctrl_c_ends_the_command_and_all_it_started(embedded: Server) -> None:
    embedded.interrupt()
    assert embedded.process.wait(PATIENCE_S) == 0
    assert embedded.members() == []
    assert not os.path.exists(f"/proc/{embedded.process.pid}")
