"""Clients, unmodified, against a trained model: each in an environment of its own, which the test
makes and keeps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environments import BUILD
from tests.client.conftest import started
from tests.server.apis import clients
from tests.server.test_smollm2 import START_S
from tests.smollm2 import FILE, NO_NETWORK
from tests.support.hash_app import ANSWER, CONTEXT
from tests.support.process import serving

PYTHON: Mapping[str, Sequence[str]] = {
    "litellm_proxy": ["litellm[proxy]==1.108.7"],
    "text_generation": ["text-generation==0.7.0"],
}
AI_SDK = ["ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"]
CODEX = ["@openai/codex@0.171.0"]
CLIENT_S = 600
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("clients")
    command = [sys.executable, "app.py", "dynamic", "--model", str(FILE), "--dtype", "float32"]
    command += ["--served-model-name", clients.MODEL, "--data-dir", str(folder / "data")]
    with started(command, "clients", folder / "log", START_S) as server:
        yield server.target.url


def made(name: str, wanted: Sequence[str], commands: Sequence[Sequence[str]]) -> Path:
    """The folder that the commands install into; skips the test where they cannot."""
    folder = BUILD / "clients" / name
    installed = folder / "installed.json"
    if installed.exists() and json.loads(installed.read_text()) == list(wanted):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            told = (done.stderr or done.stdout).strip()[-300:]
            assert NO_NETWORK.search(done.stderr) or "notarget" in told, told
            pytest.skip(f"{name} cannot be installed: {told}")
    installed.write_text(json.dumps(list(wanted)))
    return folder


def environment(name: str) -> Path:
    """Its Python."""
    wanted = PYTHON[name]
    venv_of = [sys.executable, "-m", "venv", "."]
    install = ["bin/pip", "install", "--disable-pip-version-check", "--quiet", *wanted]
    return made(name, wanted, [venv_of, install]) / "bin" / "python"


def packages(name: str, wanted: Sequence[str]) -> Path:
    """The folder of these packages of npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    return made(name, wanted, [["npm", "install", "--no-fund", "--no-audit", *wanted]])


def answered(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """The JSON on the last line of a client's output."""
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it is downloaded
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=CLIENT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def understood(told: dict[str, Any]) -> None:
    """A chat, the same as a stream, a call of a tool and an answer of a schema."""
    assert told["chat"]
    assert len(told["stream"]) > 1
    assert "".join(told["stream"]) == told["chat"]
    name, arguments = told["tool"]
    assert name == "weather"
    for found in (arguments, told["schema"]):
        assert found.keys() <= {"city", "kind"}
        assert len(found["city"]) <= 30


@pytest.mark.long
@pytest.mark.usefixtures("smollm2_file")
@pytest.mark.parametrize("name", PYTHON)
def test_a_client_is_understood(url: str, tmp_path: Path, name: str) -> None:
    understood(answered([str(environment(name)), clients.__file__, name, url], tmp_path))


@pytest.mark.long
@pytest.mark.usefixtures("smollm2_file")
def test_vercels_ai_sdk_is_understood(url: str) -> None:
    folder = packages("ai_sdk", AI_SDK)
    script = Path(clients.__file__).with_name("ai_sdk.mjs")
    shutil.copy(script, folder)  # it imports what is installed there
    understood(answered(["node", script.name, url], folder))


@pytest.mark.long
def test_codex_runs_the_command_that_a_model_calls(tmp_path: Path) -> None:
    """It streams all answers. The trained model is too small to call what it is not made to."""
    program = packages("codex", CODEX) / "node_modules" / ".bin" / "codex"
    call = {"name": "exec_command", "arguments": {"cmd": "echo se''en"}}
    answer = tmp_path / "answer.txt"
    answer.write_text(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
    model = {ANSWER: answer, CONTEXT: 2**17}
    with serving(tmp_path, hash_model=model, served_model_name=clients.MODEL) as server:
        provider = {"name": "local", "base_url": f"{server.url}/v1", "wire_api": "responses"}
        instructions = tmp_path / "instructions.md"
        instructions.write_text("You help with code. Be brief.")
        lines = [f'model = "{clients.MODEL}"', 'model_provider = "local"']
        lines.append(f'model_instructions_file = "{instructions}"')
        lines += ["[model_providers.local]", *(f'{key} = "{v}"' for key, v in provider.items())]
        (tmp_path / "config.toml").write_text("\n".join(lines))
        with subprocess.Popen(
            [program, "exec", "--json", "--skip-git-repo-check",
             "--sandbox", "danger-full-access", "Run it."],
            cwd=tmp_path, env={**os.environ, "CODEX_HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            events = map(json.loads, process.stdout or ())
            items = (event["item"] for event in events if event["type"] == "item.completed")
            ran = next(item for item in items if item["type"] == "command_execution")
            process.kill()
    assert ran["aggregated_output"].strip() == "seen"
