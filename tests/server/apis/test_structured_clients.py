"""Clients that call tools or want answers of a schema, over real sockets, on a model that answers
what the test wants; `test_clients.py` has others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.apis import structured_clients
from tests.server.hash_app import ANSWER
from tests.server.process import Server, serving

PARIS = ("weather", {"city": "Paris"})


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
