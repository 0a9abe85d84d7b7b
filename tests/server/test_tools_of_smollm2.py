"""A trained model calls tools, over a real server, by OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from tests.server.test_smollm2 import served
from tests.smollm2 import NEEDED

CITIES = ("Paris", "Rome", "Tokyo")
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": PARAMETERS,
        "strict": True,
    },
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}

pytestmark = [
    *NEEDED,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with (
        served("dynamic", tmp_path_factory.mktemp("tools")) as target,
        OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    model = client.models.list().data[0].id
    return client.chat.completions.create(
        model=model,
        messages=messages,
        tools=[WEATHER],
        **{"temperature": 0, "max_tokens": 60, **fields},
    )


def question(city: str) -> Any:
    return {"role": "user", "content": f"How is the weather in {city}?"}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_about_what_was_asked(client: OpenAI, choice: Any, stream: bool) -> None:
    for city in CITIES:
        told = ask(
            client,
            [question(city)],
            tool_choice=choice,
            stream=stream,
            parallel_tool_calls=False,
        )
        if stream:
            choices = [chunk.choices[0] for chunk in told]
            pieces = [call.function for one in choices for call in one.delta.tool_calls or ()]
            name, reason = pieces[0].name, choices[-1].finish_reason
            arguments = "".join(piece.arguments or "" for piece in pieces)
        else:
            (call,) = told.choices[0].message.tool_calls
            name, reason = call.function.name, told.choices[0].finish_reason
            arguments = call.function.arguments
        assert (name, reason) == ("weather", "tool_calls")
        found = json.loads(arguments)
        jsonschema.validate(found, PARAMETERS)
        assert city in found["city"]


def earlier(city: str) -> list[Any]:
    """A question, the call that answered it, and its result."""
    function = {"name": "weather", "arguments": json.dumps({"city": city, "unit": "celsius"})}
    call = {"id": f"call_{city}", "type": "function", "function": function}
    return [
        question(city),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "20 degrees"},
        {"role": "assistant", "content": f"In {city} it is 20 degrees."},
    ]


def test_a_call_by_the_models_own_choice_keeps_its_schema(client: OpenAI) -> None:
    """After a conversation that shows how, it calls; without one it also answers with texts."""
    shown = [*earlier("Oslo"), *earlier("Madrid")]
    found: list[Any] = []
    for messages in ([*shown, question(city)] for city in CITIES):
        for one in ask(client, messages, n=4, temperature=0.7, seed=1).choices:
            found += one.message.tool_calls or []
    assert found
    for call in found:
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    told = ask(client, [{"role": "user", "content": "Who are you?"}]).choices[0]
    assert told.message.content
