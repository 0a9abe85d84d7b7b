"""The commands a newcomer types, as they are typed, and their options: one definition for command
line, environment, help and errors."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import app
from options import OptionError, flag
from serving.config import MODES, Config
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
    args: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `./server.sh` runs; the next test types the command itself."""
    monkeypatch.setattr(sys, "argv", ["app.py", "dynamic", *args])
    monkeypatch.setenv(app.POLICY_FOLDER, str(ROOT))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it starts"))
    with pytest.raises(SystemExit, match=re.escape(message)):
        app.main()


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


VARIABLES = {option.name: option.variables[0] for option in Config.declared()}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("port", "0", "1 to 65535"),
        ("port", "80.5", "a whole number"),
        ("max_wait_ms", "nan", "0 to"),
        ("max_wait_ms", "soon", "a number"),
        ("drain_timeout", "inf", "0 to"),
        ("dtype", "float64", "auto, float32, bfloat16, float16"),
        ("device", "gpu", "cpu, cuda, cuda:1"),
        ("host", "", "empty"),
        ("token_budget", "some", "'some' is neither auto nor a whole number"),
        ("kv_memory", "much", "2GiB, 500MB, 30000tokens"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    name: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, environ in (
        (["dynamic", f"{flag(name)}={value}"], {}),
        (["dynamic"], {VARIABLES[name]: value}),
    ):
        with pytest.raises(SystemExit, match="2"):
            Config.from_args(args, environ)
        usage, error = capsys.readouterr().err.splitlines()
        assert usage.startswith("usage: ./server.sh MODE")
        assert error.startswith(f"server.sh: error: {flag(name)} ({VARIABLES[name]})")
        assert allowed in error


def test_a_body_of_any_allowed_size_fits_among_those_that_are_held() -> None:
    with pytest.raises(OptionError, match="--max-held-bytes is 4096; allowed: at least"):
        Config(mode="dynamic", max_body_bytes=4097, max_held_bytes=4096)


def test_the_environment_alone_needs_a_mode() -> None:
    with pytest.raises(OptionError, match="EB_MODE is not set; allowed: nobatch, static, dynamic"):
        Config.from_environment({})


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("static", {"policy": "tgi"}, ["--policy has an effect only in mode dynamic"]),
        ("nobatch", {"admission": "optimistic", "max_wait_ms": 50.0}, ["--admission has an"]),
        ("dynamic", {"max_wait_ms": 1.0}, ["--max-wait-ms has an effect only in mode static"]),
        (
            "dynamic",
            {"policy": "orca", "token_budget": 9},
            ["--token-budget has an effect only with --policy stall-free"],
        ),
        ("static", {"policy": "orca", "token_budget": 99}, ["--policy", "--token-budget"]),
        ("dynamic", {"policy": "mine:Mine", "token_budget": 9, "max_bypass": 1}, []),
        ("static", {"static_release": "request", "max_batch_size": 3, "kv_memory": "1GiB"}, []),
        ("dynamic", {}, []),
    ],
)
def test_an_option_without_effect_is_reported(
    mode: Any, options: dict[str, Any], told: list[str]
) -> None:
    found = Config(mode, **options).without_effect
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True))


@pytest.mark.parametrize(
    ("args", "on_cpu", "on_gpu"),
    [
        (["dynamic"], 0, 1),
        (["static", "--lookahead", "1"], 1, 1),
        (["dynamic", "--lookahead", "0"], 0, 0),
        (["static", "--remote-model", "unix:/tmp/model"], 1, 1),
    ],
)
def test_a_remote_model_and_a_gpu_work_ahead_unless_told_otherwise(
    args: list[str], on_cpu: int, on_gpu: int
) -> None:
    config = Config.from_args(args, {})
    assert config.iterations_ahead("cpu") == on_cpu
    assert config.iterations_ahead("NVIDIA H100") == on_gpu


@pytest.mark.parametrize(
    ("host", "is_open", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8500"),
        ("::1", False, "http://[::1]:8500"),
        ("::", True, "http://[::]:8500"),
        ("example.org", True, "http://example.org:8500"),
    ],
)
def test_a_remote_host_is_recognised(host: str, is_open: bool, url: str) -> None:
    config = Config(mode="dynamic", host=host)
    assert (config.open_to_the_world, config.url) == (is_open, url)
