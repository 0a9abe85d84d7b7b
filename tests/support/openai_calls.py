"""Requests of OpenAI's API to the handlers in this process, as its tests make them."""

from __future__ import annotations

import json
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

CONTEXT = 1024
COMPLETION: dict[str, object] = {"model": "embedded", "prompt": "x"}
CHAT: dict[str, object] = {"model": "embedded", "messages": [{"role": "user", "content": "x"}]}
PATHS: dict[str, dict[str, object]] = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}

Json = dict[str, Any]


def ask(client: FlaskClient, path: str = "/v1/completions", **fields: Any) -> TestResponse:
    return client.post(path, json={**PATHS[path], **fields})


def complete(client: FlaskClient, **fields: Any) -> Json:
    answer = ask(client, **fields)
    assert answer.status_code == 200, answer.get_json()
    told: Json = answer.get_json()
    assert isinstance(told["system_fingerprint"], str)
    return told


def chat(client: FlaskClient, **fields: Any) -> Json:
    answer = ask(client, "/v1/chat/completions", **fields)
    assert answer.status_code == 200, answer.get_json()
    told: Json = answer.get_json()
    assert isinstance(told["system_fingerprint"], str)
    return told


def chunks(client: FlaskClient, path: str = "/v1/completions", **fields: Any) -> list[Json]:
    answer = ask(client, path, stream=True, **fields)
    assert answer.status_code == 200, answer.get_json()
    assert answer.mimetype == "text/event-stream"
    *events, done, rest = answer.get_data(as_text=True).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    parts = [json.loads(line.removeprefix("data: ")) for line in events]
    assert events == ["data: " + json.dumps(part, separators=(",", ":")) for part in parts]
    assert all(isinstance(part["system_fingerprint"], str) for part in parts)
    return parts


def is_error(answer: TestResponse, status: int, param: str | None = None) -> str:
    """Its message."""
    assert answer.status_code == status, answer.get_data()
    body = answer.get_json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["param"] == param
    message: str = body["error"]["message"]
    assert "\n" not in message
    return message
