"""Forced calls of a real chat model that was not trained on tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient

from serving.config import Config
from serving.thread import load_configured_model
from tests.api.conftest import serving
from tests.smollm2 import FILE, NEEDED
from tests.support.openai_calls import chat, chunks
from text.vocabulary import load_tokenizer

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
        "$defs": {
            "guest": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 20}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
pytestmark = [
    *NEEDED,
]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = str(tmp_path_factory.mktemp("smollm2"))
    config = Config(mode="dynamic", data_dir=folder, model=str(FILE), served_model_name="smollm2")
    with serving(config, load_configured_model, load_tokenizer(str(FILE))) as client:
        yield client


@pytest.mark.parametrize(
    ("question", "choice"),
    [
        ("How is the weather in Paris?", "required"),
        ("Invite Ann and Bob to lunch.", "add_event"),
        ("Who are you?", "weather"),
    ],
)
def test_a_forced_call_has_arguments_of_its_schema(
    smollm2: FlaskClient, question: str, choice: str
) -> None:
    fields: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": question}],
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "seed": 5,
    }
    for more in ({"temperature": 0}, {"n": 2}):
        for answer in chat(smollm2, **fields, **more)["choices"]:
            assert answer["finish_reason"] == "tool_calls"
            assert answer["message"]["content"] is None
            (call,) = answer["message"]["tool_calls"]
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            assert choice in ("required", name)
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    pieces = [
        piece["function"].get("arguments", "")
        for chunk in chunks(smollm2, "/v1/chat/completions", temperature=0, **fields)
        for piece in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert len(pieces) > 2  # they do not wait for the end
    jsonschema.validate(json.loads("".join(pieces)), {"type": "object"})
