"""The OpenAPI document: valid, complete, and true in that no accepted request breaks it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from api.document.openapi import register_openapi
from api.document.paths import OPERATIONS
from tests.api.openai.test_openai_refusals import JSON, NAMES
from tests.support.dialects import PATHS, body, refused

Json = dict[str, Any]

GOOD: dict[str, Json] = {path: body(path) for path in PATHS}
FIELDS = st.sampled_from([*NAMES, "messages", "inputs", "parameters", "num_tokens", "class"])


@pytest.fixture(scope="module")
def document(client: FlaskClient) -> Json:
    told: Json = client.get("/openapi.json").get_json()
    return told


def takes(document: Json, path: str) -> Draft202012Validator:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})


def test_it_is_a_valid_document(document: Json) -> None:
    validate(document)


def test_a_route_that_it_does_not_describe_is_named() -> None:
    app = Flask(__name__, static_folder=None)
    app.get("/limits")(lambda: "")
    with pytest.raises(LookupError, match="GET /limits has no row in OPERATIONS"):
        register_openapi(app, keys=False)


def test_every_path_is_in_it(client: FlaskClient, document: Json) -> None:
    rules = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for rule in client.application.url_map.iter_rules()
    }
    assert set(document["paths"]) == rules - {"/openapi.json"}
    assert {
        p for p, has in document["paths"].items() if "requestBody" in has.get("post", {})
    } >= set(GOOD)


@given(path=st.sampled_from(sorted(GOOD)), fields=st.dictionaries(FIELDS, JSON, max_size=2))
def test_a_request_that_is_accepted_fits_it(
    client: FlaskClient, document: Json, path: str, fields: Json
) -> None:
    asked = {**GOOD[path], **fields}
    if client.post(path, json=asked).status_code == 200:
        takes(document, path).validate(asked)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/inference", {"num_tokens": 0}),
        ("/inference", {"unknown": 1}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"suffix": "x"}),
        ("/v1/completions", {"logit_bias": {"5": 101}}),
        ("/v1/responses", {"input": [{"type": "item_reference"}]}),
        ("/v1/responses", {"tools": [{}]}),
        ("/v1/chat/completions", {"messages": [{"role": "tool", "content": "x"}]}),
        ("/v1/chat/completions", {"temperature": -1}),
        ("/generate", {"inputs": 5}),
    ],
)
def test_requests_that_it_forbids_are_refused(
    client: FlaskClient, document: Json, path: str, fields: Json
) -> None:
    assert takes(document, path).is_valid(GOOD[path])
    assert not takes(document, path).is_valid({**GOOD[path], **fields})
    refused(client.post(path, json={**GOOD[path], **fields}), path)


STREAMS: dict[str, Json] = {
    "/inference": {"stream": True, "num_tokens": 5},
    "/v1/completions": {
        "stream": True,
        "max_tokens": 5,
        "logprobs": 2,
        "n": 2,
        "stream_options": {"include_usage": True},
        "service_tier": "flex",
    },
    "/v1/chat/completions": {"stream": True, "max_tokens": 5, "logprobs": True, "top_logprobs": 2},
    "/v1/responses": {"stream": True, "top_logprobs": 2, "service_tier": "flex"},
    "/": {"stream": True, "inputs": "x", "parameters": {"max_new_tokens": 5}},
    "/generate_stream": {
        "inputs": "x",
        "parameters": {"max_new_tokens": 5, "top_n_tokens": 2, "details": True},
    },
}


@pytest.mark.parametrize("path", STREAMS)
def test_every_event_of_a_stream_fits_it(client: FlaskClient, document: Json, path: str) -> None:
    answer = client.post(path, json={**GOOD.get(path, {}), **STREAMS[path]})
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    data = content[answer.mimetype]["schema"]["properties"]["data"]
    lines = answer.text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if "anyOf" in data:
        data, last = data["anyOf"]
        assert events.pop() == last["const"] == "[DONE]"
    schema = {**data["contentSchema"], "components": document["components"]}
    validator = Draft202012Validator(schema)
    assert events
    for event in events:
        validator.validate(json.loads(event))
        assert not validator.is_valid({**json.loads(event), "unknown": 1})


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_documented_refusal_has_a_shape(document: Json, method: str, path: str) -> None:
    answers = document["paths"][path][method.lower()]["responses"]
    assert "200" in answers
    assert "default" not in answers
    for status in answers.keys() - {"200"}:
        schema = answers[status]["content"]["application/json"]["schema"]
        for one in schema.get("anyOf", [schema]):
            assert one["$ref"].endswith("Error")
