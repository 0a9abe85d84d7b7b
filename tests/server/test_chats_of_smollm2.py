"""A trained model chats with the official clients of both APIs: what streams is the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI

from client.load.http.target import Target
from tests.server.test_smollm2 import served
from tests.smollm2 import NEEDED
from tests.support.process import closed_at_end

TOKENS, PATIENCE_S = 60, 300.0
FRANCE = "What is the capital of France? Answer in one sentence."
ASKED = (
    FRANCE,
    "Write three words of Japanese, Greek and Russian, and an emoji.",  # of several tokens each
    "List the numbers from 95 to 105.",
)

pytestmark = [*NEEDED, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with served("dynamic", tmp_path_factory.mktemp("chats")) as target:
        yield target


def check(asked: str, whole: Any, chunks: list[Any]) -> None:
    """Both clients have the types of OpenAI's API."""
    told = [chunk.choices[0] for chunk in chunks if chunk.choices]
    pieces = [choice.delta.content or "" for choice in told]
    (answer,) = whole.choices
    assert answer.message.content
    assert "".join(pieces) == answer.message.content
    assert sum(map(bool, pieces)) > 3  # they do not wait for the end
    assert told[-1].finish_reason == answer.finish_reason
    if asked == FRANCE:
        assert "Paris" in answer.message.content
        assert answer.finish_reason == "stop"


@pytest.mark.parametrize("asked", ASKED)
def test_openais_client_streams_the_whole_answer(target: Target, asked: str) -> None:
    client = closed_at_end(
        OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    )
    fields: Any = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": asked}],
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**fields)
    check(asked, whole, list(client.chat.completions.create(**fields, stream=True)))


@pytest.mark.parametrize("asked", ASKED)
def test_tgis_client_streams_the_whole_answer(target: Target, asked: str) -> None:
    client = closed_at_end(InferenceClient(model=target.url, timeout=PATIENCE_S))
    fields: Any = {
        "messages": [{"role": "user", "content": asked}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
    }
    whole = client.chat_completion(**fields)
    check(asked, whole, list(client.chat_completion(**fields, stream=True)))
