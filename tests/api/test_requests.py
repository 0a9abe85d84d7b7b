"""What may be asked and what is answered, on every API: every wrong request gets a sentence in its
shape, none a traceback, and none harms another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from api.native import InferenceRequest
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.tgi.schemas import GenerateRequest, Parameters
from tests.api.conftest import MOST_BODY_BYTES
from tests.examples import examples
from tests.support.dialects import (
    NATIVE,
    OPENAI,
    PATHS,
    RESPONSES,
    ask,
    events,
    refused,
)
from tests.support.hash_app import byte_tokenizer
from tests.support.hashed import reference

# any JSON, and the names of fields
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
FORMS = (InferenceRequest, CompletionRequest, ChatRequest, GenerateRequest)
NAMES = sorted({"input", "other", *(name for form in FORMS for name in form.model_fields)})
PARAMETERS = st.dictionaries(st.sampled_from([*Parameters.model_fields, "other"]), JSON)

TAKING = (*PATHS, "/", "/generate_stream", "/tokenize", "/invocations")
GOOD = {"prompt": "x", "num_tokens": 1}


def post(
    client: FlaskClient, body: object, path: str = NATIVE, kind: str = "application/json"
) -> TestResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, data=data, content_type=kind)


# --- bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "mentions"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff\xfe\xfd", "JSON"),
        (b"[" * 60_000, "deeply"),
        (b'{"prompt": "x", "num_tokens": NaN}', "NaN"),
        (b'{"prompt": "x", "num_tokens": 1, "temperature": -Infinity}', "Infinity"),
        (b'{"prompt": "x", "num_tokens": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[]", "an array"),
        (b"null", "null"),
        (b"3", "got 3"),
        (b'"text"', "object"),
        (b"{}", ""),
    ],
)
def test_an_invalid_body_is_refused(
    client: FlaskClient, path: str, body: bytes, mentions: str
) -> None:
    assert mentions in refused(post(client, body, path), path)


@pytest.mark.parametrize("path", TAKING)
def test_a_body_must_be_declared_as_json_and_not_be_too_large(
    client: FlaskClient, path: str
) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert "application/json" in post(client, {}, path, kind).text
        assert post(client, {}, path, kind).status_code == 415
    assert post(client, b" " * (MOST_BODY_BYTES + 1), path).status_code == 413
    assert post(client, b" " * MOST_BODY_BYTES, path).status_code in (400, 422)
    for kind in ("application/json; charset=utf-8", "application/x+json"):
        assert post(client, GOOD, kind=kind).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("POST", "/elsewhere", 404), ("GET", "/two%0Alines", 404),
     ("GET", NATIVE, 405), ("PUT", NATIVE, 405), ("POST", "/stats", 405),
     ("GET", "/stats/reset", 405), ("DELETE", "/health", 405), ("GET", "/v1/nowhere", 404),
     ("GET", "/v1/completions", 405)],
)  # fmt: skip
def test_errors_of_routing_have_a_shape(
    client: FlaskClient, method: str, path: str, status: int
) -> None:
    answer = client.open(path, method=method)
    message = refused(answer, path if path.startswith("/v1") else NATIVE, status)
    assert status == 404 or answer.headers["Allow"] in message


@examples(100, 400)
@given(
    path=st.sampled_from(TAKING),
    body=JSON
    | st.binary(max_size=200)
    | st.dictionaries(st.sampled_from(NAMES), JSON, max_size=8)
    | st.fixed_dictionaries(
        {"inputs": st.text(max_size=9)}, optional={"parameters": PARAMETERS, "stream": JSON}
    ),
)
def test_anything_is_answered_or_refused_with_a_sentence(
    client: FlaskClient, path: str, body: object
) -> None:
    if isinstance(body, dict) and path in (*OPENAI, RESPONSES):
        body = {"max_tokens": 2, "max_output_tokens": 2, "store": False, **body}
    answer = post(client, body, path)
    if answer.status_code != 200:
        assert answer.status_code in (400, 404, 422)
        error = answer.get_json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert 0 < len(message) < 4000
        assert "\n" not in message
    answer.get_data()


# --- the native API -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": ""}, "'prompt' must be a string of at least one character"),
        ({"temperature": 1e-9}, "'temperature' must be 0 (greedy) or a number"),
        ({"seed": 2**64}, "from -2**63 to 2**64 - 1"),
        ({"class": "urgent"}, "'immediate' or 'deferred'"),
        *(({name: 5}, f"unknown field {json.dumps(name)[:60]}") for name in ("", "\n", "x" * 500)),
        ({"max_tokens": 5}, "allowed: prompt, num_tokens"),
    ],
)
def test_a_refusal_says_what_is_allowed(
    client: FlaskClient, fields: dict[str, object], said: str
) -> None:
    assert said in refused(post(client, {**GOOD, **fields}), NATIVE)


def test_missing_fields_are_named_and_values_are_shown_cut(client: FlaskClient) -> None:
    for field in GOOD:
        rest = {name: value for name, value in GOOD.items() if name != field}
        assert f"'{field}' is missing" in refused(post(client, rest), NATIVE)
    body = b'{"prompt": "x", "num_tokens": 1, "temperature": 1e999}'
    assert "'temperature'" in refused(post(client, body), NATIVE)
    assert len(refused(post(client, {**GOOD, "num_tokens": "9" * 1000}), NATIVE)) < 300


def test_a_class_a_deadline_and_the_models_name_change_no_token(client: FlaskClient) -> None:
    plain = post(client, {**GOOD, "seed": 1}).get_json()["generated"]
    for fields in ({"class": "deferred", "deadline_s": 60}, {"model": "embedded"}):
        answer = post(client, {**GOOD, "seed": 1, **fields}).get_json()
        assert answer["generated"] == plain
    refused(post(client, {**GOOD, "model": "other"}), NATIVE, 404)


@given(
    prompt=st.text(min_size=1, max_size=30),
    num_tokens=st.integers(1, 40),
    seed=st.integers(-(2**63), 2**64 - 1),
    top_p=st.floats(0, 1),
    top_k=st.integers(1, 2**31 - 1),
)
def test_any_valid_request_gets_exactly_its_tokens_streamed_or_not(
    client: FlaskClient, prompt: str, num_tokens: int, seed: int, top_p: float, top_k: int
) -> None:
    fields: Any = {"seed": seed, "top_p": top_p, "top_k": top_k}
    whole = ask(client, NATIVE, prompt, num_tokens, **fields).get_json()
    tokenizer = byte_tokenizer()
    tokens = reference(tokenizer.encode(prompt), num_tokens, seed)
    text = b"".join(tokenizer.token_bytes(token) for token in tokens).decode(errors="replace")
    assert whole["generated"] == text
    assert whole["completion"] == prompt + text
    assert (whole["num_tokens"], whole["seed"]) == (num_tokens, seed)
    streamed = ask(client, NATIVE, prompt, num_tokens, stream=True, **fields)
    *pieces, last = events(streamed)
    written = [json.dumps(piece, separators=(",", ":")) for piece in [*pieces, last]]
    assert streamed.text == "".join(f"data: {piece}\n\n" for piece in written)
    assert "".join(piece["text"] for piece in pieces) == last["generated"] == text
    assert sum(piece["tokens"] for piece in pieces) == num_tokens
    assert last["timing"].keys() == whole.pop("timing").keys()
    assert {**last, **whole, "done": True} == last
