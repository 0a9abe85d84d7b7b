"""Clients that call tools, over real sockets; those that are not installed here, in an environment
of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environments import install, python_of
from tests.server.apis import tool_clients
from tests.server.hash_app import ANSWER
from tests.server.process import Server, serving

# of each client; LiteLLM and instructor need an older version of OpenAI's
ENVIRONMENTS = {"litellm": "litellm", "instructor": "litellm"}
SEVERAL = ("huggingface_hub", "langchain", "litellm")  # the others are asked for one call
PARIS = ("weather", {"city": "Paris"})
ROME = ("weather", {"city": "Rome"})


def written(*calls: tuple[str, dict[str, Any]]) -> str:
    objects = ({"name": name, "arguments": arguments} for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in objects)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers") / "answer.txt"


@pytest.fixture(scope="module")
def scripted(answer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("clients")
    with serving(folder, hash_model={ANSWER: str(answer)}) as server:
        yield server


@pytest.mark.parametrize("name", ["openai", "huggingface_hub"])
def test_a_client_calls_tools(scripted: Server, answer: Path, name: str) -> None:
    answer.write_text(written(PARIS))
    told = tool_clients.CLIENTS[name](scripted.url)
    assert told == [[PARIS]] * len(told)


@pytest.mark.long
@pytest.mark.parametrize("name", tool_clients.CLIENTS)
def test_a_client_in_its_own_environment_calls_several_tools(
    scripted: Server, answer: Path, name: str
) -> None:
    environment = ENVIRONMENTS.get(name, "clients")
    install(environment)
    calls = [PARIS, ROME] if name in SEVERAL else [PARIS]
    answer.write_text(written(*calls))
    command = [str(python_of(environment)), str(Path(tool_clients.__file__)), name, scripted.url]
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it is downloaded
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == [[list(call) for call in calls]] * len(told)
