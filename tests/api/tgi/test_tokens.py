"""Texts as tokens and back, in TGI's shape and in vLLM's, and the path that takes any dialect."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from tests.support.openai_calls import CONTEXT, is_error

USER = [{"role": "user", "content": "hé!"}]
CONVERSATION = "User: hé!\n"


def tokens(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/tokenize", json=fields)
    assert answer.status_code == 200, answer.get_json()
    told: dict[str, Any] = answer.get_json()
    return told


def test_fields_of_vllm_are_answered_in_vllms_shape(client: FlaskClient) -> None:
    assert tokens(client, prompt="hé!", model="embedded", add_special_tokens=False) == {
        "count": 4,
        "max_model_len": CONTEXT,
        "tokens": list("hé!".encode()),
        "token_strs": None,
    }
    assert tokens(client, prompt="h!", return_token_strs=True)["token_strs"] == ["h", "!"]


def test_a_conversation_is_cut_as_the_template_writes_it(client: FlaskClient) -> None:
    whole = tokens(client, messages=USER)["tokens"]
    assert bytes(whole).decode() == CONVERSATION + "Assistant:"
    without = tokens(client, messages=USER, add_generation_prompt=False)["tokens"]
    assert bytes(without).decode() == CONVERSATION


@given(st.text(max_size=30))
def test_detokenize_undoes_tokenize(client: FlaskClient, text: str) -> None:
    ids = tokens(client, prompt=text)["tokens"]
    assert client.post("/detokenize", json={"tokens": ids}).get_json() == {"prompt": text}


def test_tgis_chat_tokenize_returns_the_text_and_its_pieces(client: FlaskClient) -> None:
    told = client.post("/chat_tokenize", json={"model": "tgi", "messages": USER}).get_json()
    text, pieces = told["templated_text"], told["tokenize_response"]
    assert text == CONVERSATION + "Assistant:"
    assert [piece["id"] for piece in pieces] == list(text.encode())
    assert all(piece["text"] == text[piece["start"] : piece["stop"]] for piece in pieces)
    refused = client.post("/chat_tokenize", json={"messages": []})
    assert (refused.status_code, refused.get_json()["error_type"]) == (422, "validation")


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [257]}, 400, "tokens"),
        *((path, {"prompt": "x", "tokens": [1], "model": "gpt-9"}, 404, "model")
          for path in ("/tokenize", "/detokenize", "/invocations")),
        ("/invocations", {}, 400, "prompt"),
        ("/invocations", {"messages": []}, 400, "messages"),
    ],
)  # fmt: skip
def test_invalid_requests_of_openais_clients_are_refused_in_openais_shape(
    client: FlaskClient, path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    is_error(client.post(path, json=fields), status, param)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/", {"inputs": "x", "parameters": {"max_new_tokens": 5, "seed": 3, "do_sample": True}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 5, "seed": 3}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 5, "seed": 3}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_invocation_is_answered_as_the_path_whose_fields_it_has(
    client: FlaskClient, path: str, fields: dict[str, Any], stream: bool
) -> None:
    invoked, direct = (client.post(p, json={**fields, "stream": stream})
                       for p in ("/invocations", path))  # fmt: skip
    assert invoked.status_code == direct.status_code == 200
    assert invoked.mimetype == direct.mimetype
    if stream:
        assert len(invoked.text.split("\n\n")) == len(direct.text.split("\n\n"))
    else:
        told = [one.get_json() for one in (invoked, direct)]
        assert told[0] == told[1] if path == "/" else told[0]["choices"] == told[1]["choices"]
    answer = client.post("/invocations", json={"inputs": ""})
    assert (answer.status_code, answer.get_json()["error_type"]) == (422, "validation")
