"""A trained model, which knows nothing of tools, calls them over a real server, by OpenAI's client:
a grammar keeps the arguments to their schema."""

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
GUEST = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}},
    "required": ["name"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city", "unit", "days"],
        "additionalProperties": False,
    },
    "add_event": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 40},
            "guests": {"type": "array", "items": {"$ref": "#/$defs/guest"}, "maxItems": 3},
        },
        "required": ["title", "guests"],
        "additionalProperties": False,
        "$defs": {"guest": GUEST},
    },
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
pytestmark = [*NEEDED, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with (
        served("dynamic", tmp_path_factory.mktemp("tools")) as target,
        OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: OpenAI, messages: list[Any], tools: list[Any] = TOOLS, **fields: Any) -> Any:
    model = client.models.list().data[0].id
    asked: Any = {"temperature": 0, "max_tokens": 400, **fields}
    return client.chat.completions.create(model=model, messages=messages, tools=tools, **asked)


def question(text: str) -> Any:
    return {"role": "user", "content": text}


def weather(city: str) -> Any:
    return question(f"How is the weather in {city}?")


@pytest.mark.parametrize(
    ("asked", "tools", "choice", "said"),
    [
        *((weather(city), TOOLS[:1], choice, city) for city in CITIES
          for choice in ("required", NAMED)),
        (question("Invite Ann and Bob to lunch."), TOOLS, "add_event", ""),
        (question("Who are you?"), TOOLS, "weather", ""),
        (weather("Paris"), TOOLS, "required", ""),
    ],
)  # fmt: skip
def test_a_forced_call_has_arguments_of_its_schema_streamed_or_not(
    client: OpenAI, asked: Any, tools: list[Any], choice: Any, said: str
) -> None:
    fields: Any = {"tool_choice": choice, "parallel_tool_calls": False, "seed": 5}
    wholes = [ask(client, [asked], tools, **fields)]
    if not said:
        wholes.append(ask(client, [asked], tools, **fields, temperature=1, n=2))
    for whole in wholes:
        for one in whole.choices:
            (call,) = one.message.tool_calls
            assert (one.finish_reason, one.message.content) == ("tool_calls", None)
            name, found = call.function.name, json.loads(call.function.arguments)
            assert choice in ("required", NAMED, name)
            jsonschema.validate(found, SCHEMAS[name])
            assert said in found.get("city", "")
    choices = [chunk.choices[0] for chunk in ask(client, [asked], tools, **fields, stream=True)]
    pieces = [call.function for one in choices for call in one.delta.tool_calls or ()]
    assert len(pieces) > 2  # they do not wait for the end
    (call,) = wholes[0].choices[0].message.tool_calls
    assert (pieces[0].name, choices[-1].finish_reason) == (call.function.name, "tool_calls")
    assert "".join(piece.arguments or "" for piece in pieces) == call.function.arguments


def earlier(city: str) -> list[Any]:
    """A question, the call that answered it, and its result."""
    arguments = json.dumps({"city": city, "unit": "celsius", "days": 1})
    function = {"name": "weather", "arguments": arguments}
    call = {"id": f"call_{city}", "type": "function", "function": function}
    return [
        weather(city),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "20 degrees"},
        {"role": "assistant", "content": f"In {city} it is 20 degrees."},
    ]


def test_a_call_by_the_models_own_choice_keeps_its_schema(client: OpenAI) -> None:
    """After a conversation that shows how, it calls; without one it also answers with texts."""
    shown = [message for city in ("Oslo", "Madrid", "Lima", "Cairo") for message in earlier(city)]
    found: list[Any] = []
    for messages in ([*shown, weather(city)] for city in CITIES):
        for one in ask(client, messages, TOOLS[:1], n=4, temperature=0.7, seed=1).choices:
            found += one.message.tool_calls or []
    assert found
    for call in found:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["weather"])
    told = ask(client, [question("Who are you?")], TOOLS[:1], max_tokens=60).choices[0]
    assert told.message.content
