"""OpenAI's and TGI's clients, unmodified, with constraints that the embedded model keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.server.process import Server, serving

Values = list[dict[str, Any]]

USER: Any = {"role": "user", "content": "A point."}
MODEL = "embedded"


class Point(BaseModel):
    """A point with a kind, and nothing else: sampled texts would add keys without end."""

    model_config = ConfigDict(extra="forbid")

    x: int = Field(ge=0, le=99)
    kind: Literal["corner", "centre"]


SCHEMA = Point.model_json_schema()
NAMED: Any = {
    "type": "json_schema",
    "json_schema": {"name": "point", "schema": SCHEMA, "strict": True},
}


def with_openai(url: str) -> Values:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions
        parsed = chat.parse(model=MODEL, messages=[USER], response_format=Point)
        point = parsed.choices[0].message.parsed
        assert isinstance(point, Point)
        with chat.stream(model=MODEL, messages=[USER], response_format=Point) as events:
            streamed = events.get_final_completion().choices[0].message.parsed
        assert isinstance(streamed, Point)
        asked = chat.create(model=MODEL, messages=[USER], response_format=NAMED)
        guided = chat.create(model=MODEL, messages=[USER], extra_body={"guided_json": SCHEMA})
        other = chat.create(
            model=MODEL, messages=[USER], extra_body={"structured_outputs": {"json": SCHEMA}}
        )
    contents = (answer.choices[0].message.content for answer in (asked, guided, other))
    return [point.model_dump(), streamed.model_dump(), *(json.loads(c or "") for c in contents)]


def with_huggingface_hub(url: str) -> Values:
    told: list[str] = []
    with InferenceClient(base_url=f"{url}/v1") as client:
        for format in (NAMED, {"type": "json", "value": SCHEMA}):
            answer = client.chat_completion([USER], response_format=format)
            told.append(answer.choices[0].message.content or "")
    with InferenceClient(url) as client:
        grammar: Any = {"type": "json", "value": SCHEMA}
        told.append(
            client.text_generation("x", grammar=grammar, max_new_tokens=60, return_full_text=False)
        )
        stream = client.text_generation(
            "x", grammar=grammar, max_new_tokens=60, return_full_text=False, stream=True
        )
        told.append("".join(stream).removesuffix("<|endoftext|>"))
        pattern: Any = {"type": "regex", "value": '\\{"x": [0-9], "kind": "corner"\\}'}
        told.append(
            client.text_generation("x", grammar=pattern, max_new_tokens=60, return_full_text=False)
        )
    return [json.loads(text) for text in told]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("embedded"), app="app:create_app()") as server:
        yield server


@pytest.mark.parametrize("ask", [with_openai, with_huggingface_hub])
def test_a_client_receives_what_it_asks_for(embedded: Server, ask: Callable[[str], Values]) -> None:
    for value in ask(embedded.url):
        Point.model_validate(value)
