"""What the fields of every API make of an answer, with the embedded model."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.api.conftest import EMBEDDED_LEN
from tests.support.dialects import NATIVE, TGI, Json, ask, events, refused
from tests.support.openai_calls import CHAT, both, complete

POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 9},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["x", "kind"],
    "additionalProperties": False,
}
SHAPE = re.compile(r'\{"x": [0-9], "kind": "[ab]"\}')
CODE = "[A-Z]{2}-[0-9]{3}"


def chat(client: FlaskClient, **fields: Any) -> Json:
    return complete(client, CHAT, **{"max_tokens": 60, "seed": 1, **fields})


def content(told: Json) -> str:
    (choice,) = told["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"]
    return text


def named(schema: Json, **more: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, **more}}


POINTS: list[Json] = [
    {"response_format": named(POINT, strict=True)},
    {"response_format": named(POINT)},
    {"response_format": {"type": "json", "value": POINT}},
    {"response_format": {"type": "json_object", "value": json.dumps(POINT)}},
    {"response_format": {"type": "json_object", "schema": POINT}},
    {"response_format": {"type": "json_schema", "value": {"name": "point", "schema": POINT}}},
    {"structured_outputs": {"json": json.dumps(POINT)}},
    {"guided_json": POINT, "response_format": {"type": "text"}},
    {"guided_json": POINT, "min_tokens": 55, "top_p": 0.5, "logit_bias": {"5": 9}},
]
OTHERS: list[tuple[Json, str]] = [
    ({"guided_regex": CODE}, CODE),
    ({"structured_outputs": {"regex": CODE}}, CODE),
    ({"response_format": {"type": "regex", "value": CODE}}, CODE),
    ({"guided_choice": ["red", "green"]}, "red|green"),
    ({"guided_grammar": 'start: ("a" | "b") "!"'}, "[ab]!"),
    ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
    ({"json_schema": {"type": "boolean"}}, "true|false"),
    ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, "a[0-9]"),
    ({"response_format": {"type": "json_object"}, "stop": "}", "max_tokens": 200}, r"(?s)\{.*"),
    ({"structured_outputs": {"json_object": True}, "stop": "}", "max_tokens": 200}, r"(?s)\{.*"),
]


@pytest.mark.parametrize(
    ("fields", "pattern"), [*((fields, SHAPE.pattern) for fields in POINTS), *OTHERS]
)
def test_a_constraint_is_kept_on_openais_api(
    embedded: FlaskClient, fields: Json, pattern: str
) -> None:
    assert re.fullmatch(pattern, content(chat(embedded, **fields)))
    completion = complete(embedded, **{"max_tokens": 60, **fields})
    assert re.fullmatch(pattern, completion["choices"][0]["text"])


def test_choices_streams_and_logprobs_keep_it_too(embedded: FlaskClient) -> None:
    """Forced tokens are counted and scored as others are."""
    fields: Json = {"response_format": named(POINT), "max_tokens": 60, "seed": 1, "n": 3}
    free, scored = both(embedded, CHAT, **fields), both(embedded, CHAT, **fields, logprobs=True)
    assert free["usage"] == scored["usage"]
    for choice, other in zip(scored["choices"], free["choices"], strict=True):
        text = choice["message"]["content"]
        assert SHAPE.fullmatch(text)
        assert text == other["message"]["content"]
        assert "".join(token["token"] for token in choice["logprobs"]["content"]) == text


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"type": "json", "value": POINT}, SHAPE.pattern),
        ({"type": "json_schema", "value": {"name": "p", "schema": POINT}}, SHAPE.pattern),
        ({"type": "regex", "value": CODE}, CODE),
    ],
)
def test_a_grammar_is_kept_on_tgis_api(embedded: FlaskClient, grammar: Json, pattern: str) -> None:
    answer = ask(embedded, TGI, tokens=60, grammar=grammar, details=True).get_json()
    assert re.fullmatch(pattern, answer["generated_text"])
    assert answer["details"]["finish_reason"] == "eos_token"
    last = events(ask(embedded, TGI, tokens=60, grammar=grammar, stream=True))[-1]
    assert last["generated_text"] == answer["generated_text"]


def test_the_limit_may_be_less_than_the_models_own(embedded: FlaskClient) -> None:
    (card,) = embedded.get("/v1/models").get_json()["data"]
    assert card["max_model_len"] == EMBEDDED_LEN
    assert f"context of {EMBEDDED_LEN}" in refused(
        ask(embedded, NATIVE, tokens=EMBEDDED_LEN), NATIVE
    )
    assert ask(embedded, NATIVE, tokens=EMBEDDED_LEN - 8).status_code == 200
