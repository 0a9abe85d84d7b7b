"""The OpenAPI document: valid, complete, and true of what is accepted, refused and streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from api.document.openapi import register_openapi
from api.document.paths import OPERATIONS
from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import PATHS, TGI, Json, body, refused

GOOD: dict[str, Json] = {path: body(path) for path in PATHS}
GOOD["/v1/batches"] = {"input_file_id": "f", "endpoint": PATHS[1], "completion_window": "24h"}
# True and 0 are left out: as Python compares them, they are 1 and False
POOL: list[Any] = [False, 2, -1, 1.5, 2**64, "", "x", [], ["x"], [None], {}, {"a": 1}]


@pytest.fixture(scope="module")
def document(client: FlaskClient) -> Json:
    told: Json = client.get("/openapi.json").get_json()
    return told


def body_schema(document: Json, path: str) -> Json:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    schema: Json = content["application/json"]["schema"]
    return schema


def fields_of(document: Json, path: str) -> Json:
    """Their schemas; TGI's are nested."""
    schemas = document["components"]["schemas"]
    form = "Parameters" if path == TGI else body_schema(document, path)["$ref"].rpartition("/")[2]
    fields: Json = schemas[form]["properties"]
    return fields


def validator(document: Json, schema: Json) -> Draft202012Validator:
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
    with_body = {p for p, has in document["paths"].items() if "requestBody" in has.get("post", {})}
    assert with_body >= set(GOOD)


@pytest.mark.parametrize("path", GOOD)
def test_a_value_that_it_excludes_is_refused_by_the_name_of_its_field(
    client: FlaskClient, document: Json, path: str
) -> None:
    fields, excluded = fields_of(document, path), 0
    for name, schema in fields.items():
        allowed = validator(document, schema)
        for value in POOL:
            if not allowed.is_valid(value):
                excluded += 1
                wrong = {"parameters": {name: value}} if path == TGI else {name: value}
                message = refused(client.post(path, json={**GOOD[path], **wrong}), path)
                assert f"'{name}'" in message or f"`{name}`" in message
    assert excluded > 5 * len(fields)


@pytest.mark.parametrize("path", PATHS)
def test_null_is_the_same_as_left_out_where_it_allows_that(
    client: FlaskClient, document: Json, path: str
) -> None:
    nulls = {
        name: None
        for name, schema in fields_of(document, path).items()
        if validator(document, schema).is_valid(None)
    }
    assert len(nulls) > 5
    nested = {"parameters": {**nulls, "max_new_tokens": 1}} if path == TGI else {}
    assert client.post(path, json={**nulls, **GOOD[path], **nested}).status_code == 200


STREAMS: dict[str, Json] = {
    "/inference": {"num_tokens": 5},
    "/v1/completions": {"max_tokens": 5, "logprobs": 2, "n": 2, "service_tier": "flex",
                        "stream_options": {"include_usage": True}},
    "/v1/chat/completions": {"max_tokens": 5, "logprobs": True, "top_logprobs": 2},
    "/v1/responses": {"top_logprobs": 2, "service_tier": "flex"},
    "/": {"inputs": "x", "parameters": {"max_new_tokens": 5}},
    "/generate_stream": body(TGI, tokens=5, top_n_tokens=2, details=True),
}  # fmt: skip


@pytest.mark.parametrize("path", STREAMS)
def test_every_event_of_a_stream_fits_it(client: FlaskClient, document: Json, path: str) -> None:
    answer = client.post(path, json={"stream": True, **GOOD.get(path, {}), **STREAMS[path]})
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    data = content[answer.mimetype]["schema"]["properties"]["data"]
    lines = answer.text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if "anyOf" in data:
        data, last = data["anyOf"]
        assert events.pop() == last["const"] == "[DONE]"
    fits = validator(document, data["contentSchema"])
    assert events
    for event in events:
        fits.validate(json.loads(event))
        assert not fits.is_valid({**json.loads(event), "unknown": 1})


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_documented_refusal_has_a_shape(document: Json, method: str, path: str) -> None:
    answers = document["paths"][path][method.lower()]["responses"]
    assert "200" in answers
    assert "default" not in answers
    for status in answers.keys() - {"200"}:
        schema = answers[status]["content"]["application/json"]["schema"]
        for one in schema.get("anyOf", [schema]):
            assert one["$ref"].endswith("Error")


HEADERS = {"Authorization": "Bearer one"}
UNASKED = {
    ("POST", "/v1/files"),  # multipart bodies have tests of their own
    ("GET", "/watch"),  # a file, which the client leaves open
    ("GET", "/watch/events"),  # without an end
    ("POST", "/watch/play"),  # takes as long as its body says
    ("GET", "/watch/trace"),  # of two types
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = str(tmp_path_factory.mktemp("asked"))
    limits: Any = {"max_total_tokens": 64, "max_body_bytes": 65536}
    with serving(Config("dynamic", api_key="one", data_dir=folder, **limits)) as client:
        yield client


@pytest.fixture(scope="module")
def promised(asked: FlaskClient) -> Any:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", asked.application, headers=HEADERS)
    rejection = schema.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413"]  # a long wrong body
    return schema


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (*key, mode)
        for key, operation in OPERATIONS.items()
        for mode in GenerationMode
        # unknown parameters of an address are ignored, as everywhere
        if key not in UNASKED and (operation.body or mode is GenerationMode.POSITIVE)
    ],
)
def test_every_operation_is_what_the_document_says(
    promised: Any, method: str, path: str, mode: GenerationMode
) -> None:
    @given(case=promised[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=settings().max_examples // 2,
        database=None,
        phases=[Phase.generate],  # a failure names its example; to shrink it takes long
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any) -> None:
        case.call_and_validate(headers=HEADERS, checks=CHECKS)

    holds()
