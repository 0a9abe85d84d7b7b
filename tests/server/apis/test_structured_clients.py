"""Clients that call tools or want answers of a schema, over real sockets; those that are not
installed here, in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import installed
from tests.server.apis import structured_clients
from tests.server.hash_app import ANSWER
from tests.server.process import Server, serving

# of each client; LiteLLM and instructor need an older version of OpenAI's
ENVIRONMENTS = dict.fromkeys(("litellm", "litellm_responses", "instructor"), "litellm")
ONE_CALL = ("openai", "langchain_structured", "instructor")  # the others are given two
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


@pytest.mark.parametrize("name", ["openai", "openai_responses", "huggingface_hub"])
def test_a_client_calls_tools(scripted: Server, answer: Path, name: str) -> None:
    answer.write_text(written(PARIS))
    told = structured_clients.CALLING[name](scripted.url)
    assert told == [[PARIS]] * len(told)


@pytest.mark.parametrize("name", ["openai", "huggingface_hub"])
def test_a_client_gets_an_answer_of_its_schema(scripted: Server, answer: Path, name: str) -> None:
    answer.write_text(json.dumps(PARIS[1]))
    told = structured_clients.OF_SCHEMAS[name](scripted.url)
    assert told
    assert told == [[PARIS]] * len(told)


@pytest.mark.long
@pytest.mark.parametrize("name", structured_clients.CALLING)
def test_a_client_in_its_own_environment_calls_several_tools(
    scripted: Server, answer: Path, name: str
) -> None:
    calls = [PARIS] if name in ONE_CALL else [PARIS, ROME]
    answer.write_text(written(*calls))
    told = told_by("calling", name, scripted.url)
    assert told
    assert told == [[list(call) for call in calls]] * len(told)


@pytest.mark.long
@pytest.mark.parametrize("name", structured_clients.OF_SCHEMAS)
def test_a_client_in_its_own_environment_gets_an_answer_of_its_schema(
    scripted: Server, answer: Path, name: str
) -> None:
    answer.write_text(json.dumps(PARIS[1]))
    told = told_by("format", name, scripted.url)
    assert told
    assert told == [[list(PARIS)]] * len(told)


def told_by(kind: str, name: str, url: str) -> Any:
    environment = ENVIRONMENTS.get(name, "clients")
    python = installed(environment)
    script = str(Path(structured_clients.__file__))
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it is downloaded
    done = subprocess.run(
        [str(python), script, kind, name, url],
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
