"""What may be asked and what is answered: every wrong request gets a sentence, none a traceback,
and none harms another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from tests.hashed import reference
from tests.server.hash_app import byte_tokenizer

CONTEXT = 1024
GOOD = {"prompt": "x", "num_tokens": 1}


def post(client: FlaskClient, body: bytes, content_type: str = "application/json") -> TestResponse:
    return client.post("/inference", data=body, content_type=content_type)


def ask(client: FlaskClient, **body: Any) -> TestResponse:
    return post(client, json.dumps(body).encode())


def is_explained(answer: TestResponse) -> bool:
    body = answer.get_json()
    return list(body) == ["error"] and isinstance(body["error"], str) and "\n" not in body["error"]


@pytest.mark.parametrize(
    ("body", "mentions"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"not json", "JSON"),
        (b"\xff\xfe\xfd", "JSON"),
        (b"[" * 60_000, "deeply"),
        (b'{"prompt": "x", "num_tokens": NaN}', "NaN"),
        (b'{"prompt": "x", "num_tokens": 1, "temperature": -Infinity}', "Infinity"),
        (b'{"prompt": "x", "num_tokens": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[]", "an array"),
        (b"null", "null"),
        (b"3", "got 3"),
        (b'"text"', "object"),
        (b"{}", "'prompt' is missing"),
        (b'{"prompt": "x"}', "'num_tokens' is missing"),
        (b'{"num_tokens": 1}', "'prompt' is missing"),
    ],
)
def test_an_invalid_body_is_refused(client: FlaskClient, body: bytes, mentions: str) -> None:
    answer = post(client, body)
    assert answer.status_code == 400
    assert is_explained(answer)
    assert mentions in answer.get_json()["error"]


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("prompt", "", "at least one character"),
        ("prompt", 5, "a string"),
        ("prompt", None, "a string"),
        ("prompt", ["x"], "a string"),
        ("prompt", {"text": "x"}, "a string"),
        ("num_tokens", 0, "from 1"),
        ("num_tokens", -1, "from 1"),
        ("num_tokens", True, "whole number"),
        ("num_tokens", 1.5, "whole number"),
        ("num_tokens", 1.0, "whole number"),
        ("num_tokens", "1", "whole number"),
        ("num_tokens", None, "whole number"),
        ("temperature", -0.1, "0 (greedy) or a number"),
        ("temperature", 1e-9, "0 (greedy) or a number"),
        ("temperature", 1e300, "0 (greedy) or a number"),
        ("temperature", True, "a number"),
        ("temperature", "1", "a number"),
        ("top_k", 0, "from 1 to 2147483647"),
        ("top_k", 2**32, "from 1 to 2147483647"),
        ("top_k", 1.0, "whole number"),
        ("top_k", False, "whole number"),
        ("top_p", -0.1, "from 0 to 1"),
        ("top_p", 1.01, "from 0 to 1"),
        ("top_p", "0.5", "a number"),
        ("seed", -(2**63) - 1, "from -2**63"),
        ("seed", 2**64, "to 2**64 - 1"),
        ("seed", 0.0, "whole number"),
        ("stream", 1, "true or false"),
        ("stream", "true", "true or false"),
        ("class", "urgent", "'immediate' or 'deferred'"),
        ("class", None, "'immediate' or 'deferred'"),
        ("deadline_s", 0, "above 0"),
        ("deadline_s", "60", "seconds"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(
    client: FlaskClient, field: str, value: object, allowed: str
) -> None:
    answer = ask(client, **{**GOOD, field: value})
    assert answer.status_code == 400
    assert is_explained(answer)
    assert f"'{field}'" in answer.get_json()["error"]
    assert allowed in answer.get_json()["error"]


def test_a_deferred_request_with_a_deadline_has_the_same_tokens(client: FlaskClient) -> None:
    plain = ask(client, **GOOD, seed=1).get_json()
    deferred = ask(client, **GOOD, seed=1, **{"class": "deferred", "deadline_s": 60}).get_json()
    assert deferred["generated"] == plain["generated"]


def test_a_request_may_name_the_served_model_and_no_other(client: FlaskClient) -> None:
    plain = ask(client, **GOOD, seed=1).get_json()
    named = ask(client, **GOOD, seed=1, model="embedded").get_json()
    assert named["completion"] == plain["completion"]
    other = ask(client, **GOOD, model="other")
    assert other.status_code == 404
    assert is_explained(other)
    assert "'model'" in ask(client, **GOOD, model=5).get_json()["error"]


@pytest.mark.parametrize("field", ["numtokens", "max_tokens", "", "\n", "x" * 500])
def test_an_unknown_field_is_named_with_those_that_are_known(
    client: FlaskClient, field: str
) -> None:
    answer = ask(client, **GOOD, **{field: 5})
    assert answer.status_code == 400
    assert is_explained(answer)
    assert f"unknown field {json.dumps(field)[:60]}" in answer.get_json()["error"]
    assert "allowed: prompt, num_tokens" in answer.get_json()["error"]


def test_a_number_beyond_floating_point_is_refused(client: FlaskClient) -> None:
    answer = post(client, b'{"prompt": "x", "num_tokens": 1, "temperature": 1e999}')
    assert answer.status_code == 400
    assert "'temperature'" in answer.get_json()["error"]


def test_the_value_that_is_shown_is_cut(client: FlaskClient) -> None:
    answer = ask(client, prompt="x", num_tokens="9" * 1000)
    assert len(answer.get_json()["error"]) < 300


def test_prompt_and_tokens_up_to_the_context_fit_and_beyond_it_do_not(client: FlaskClient) -> None:
    fits = ask(client, prompt="x" * (CONTEXT - 3), num_tokens=3)
    assert fits.get_json()["num_tokens"] == 3
    for prompt_tokens, num_tokens in ((CONTEXT - 3, 4), (1, CONTEXT), (CONTEXT, 1), (1, 2**31 - 1)):
        answer = ask(client, prompt="x" * prompt_tokens, num_tokens=num_tokens)
        assert answer.status_code == 400
        assert f"context of {CONTEXT}" in answer.get_json()["error"]
        assert is_explained(answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/elsewhere", 404),
        ("GET", "/two%0Alines", 404),
        ("GET", "/inference", 405),
        ("PUT", "/inference", 405),
        ("POST", "/stats", 405),
        ("GET", "/stats/reset", 405),
        ("DELETE", "/health", 405),
    ],
)
def test_errors_of_routing_have_the_same_shape(
    client: FlaskClient, method: str, path: str, status: int
) -> None:
    answer = client.open(path, method=method)
    assert answer.status_code == status
    assert is_explained(answer)
    if status == 405:
        assert answer.headers["Allow"] in answer.get_json()["error"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_not_declared_as_json_gets_415(client: FlaskClient, content_type: str) -> None:
    answer = post(client, json.dumps(GOOD).encode(), content_type)
    assert answer.status_code == 415
    assert "application/json" in answer.get_json()["error"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/x+json"])
def test_json_by_another_name_is_taken(client: FlaskClient, content_type: str) -> None:
    assert post(client, json.dumps(GOOD).encode(), content_type).status_code == 200


@pytest.mark.parametrize(
    "prompt",
    [
        "<|endoftext|>",
        "a\x00b",
        "\U0001f600",
        "\ud800",
        "\udc00\ud800",
        "e\u0301\u202e\u200d",
        "\U0010ffff",
    ],
)
def test_a_prompt_may_hold_any_unicode(client: FlaskClient, prompt: str) -> None:
    answer = ask(client, prompt=prompt, num_tokens=4, seed=1).get_json()
    prompt = prompt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert answer["completion"] == prompt + answer["generated"]
    assert answer["prompt_tokens"] == len(byte_tokenizer().encode(prompt))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
_names = st.sampled_from(
    ["prompt", "num_tokens", "temperature", "top_k", "top_p", "seed", "stream", "other"]
)


@given(body=st.dictionaries(_names, _json, max_size=8) | _json)
def test_any_json_is_answered_or_refused_with_a_sentence(client: FlaskClient, body: object) -> None:
    answer = post(client, json.dumps(body).encode())
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or is_explained(answer)


@given(body=st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused_with_a_sentence(
    client: FlaskClient, body: bytes
) -> None:
    answer = post(client, body)
    assert answer.status_code == 400
    assert is_explained(answer)


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
    body = {
        "prompt": prompt,
        "num_tokens": num_tokens,
        "seed": seed,
        "top_p": top_p,
        "top_k": top_k,
    }
    whole = ask(client, **body).get_json()
    tokenizer = byte_tokenizer()
    tokens = reference(tokenizer.encode(prompt), num_tokens, seed)
    text = b"".join(tokenizer.token_bytes(token) for token in tokens).decode(errors="replace")
    assert whole["generated"] == text
    assert whole["completion"] == prompt + text
    assert (whole["num_tokens"], whole["seed"]) == (num_tokens, seed)
    streamed = ask(client, **body, stream=True)
    assert streamed.mimetype == "text/event-stream"
    lines = streamed.get_data(as_text=True).split("\n")
    *pieces, last = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    written = [json.dumps(piece, separators=(",", ":")) for piece in [*pieces, last]]
    assert [line for line in lines if line] == [f"data: {piece}" for piece in written]
    assert "".join(piece["text"] for piece in pieces) == last["generated"] == text
    assert sum(piece["tokens"] for piece in pieces) == num_tokens
    assert last["timing"].keys() == whole.pop("timing").keys()
    assert {**last, **whole, "done": True} == last
