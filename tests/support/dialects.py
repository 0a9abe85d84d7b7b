"""The server's operations; of those that generate a text: what a request to each looks like, and
its errors."""

from __future__ import annotations

import json
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.openapi import Operations
from app import create_app
from serving.config import Config

Json = dict[str, Any]

OPERATIONS: Operations = create_app(Config("dynamic")).extensions["operations"]

NATIVE = "/inference"
OPENAI = ("/v1/completions", "/v1/chat/completions")
RESPONSES = "/v1/responses"
TGI = "/generate"
PATHS = (NATIVE, *OPENAI, RESPONSES, TGI)
_LIMITS = {NATIVE: "num_tokens", **dict.fromkeys(OPENAI, "max_tokens"),
           RESPONSES: "max_output_tokens"}  # fmt: skip


def body(path: str, prompt: str = "x", tokens: int = 1, **fields: Any) -> Json:
    if path not in _LIMITS:  # TGI's
        return {"inputs": prompt, "parameters": {"max_new_tokens": tokens, **fields}}
    asked: Json = {_LIMITS[path]: tokens, **fields}
    if path == "/v1/chat/completions":
        return {"messages": [{"role": "user", "content": prompt}], **asked}
    if path == RESPONSES:
        return {"input": prompt, "store": False, **asked}
    return {"prompt": prompt, **asked}


def ask(
    client: FlaskClient, path: str, prompt: str = "x", tokens: int = 1, *, stream: bool = False,
    **fields: Any,
) -> TestResponse:  # fmt: skip
    asked = body(path, prompt, tokens, **fields)
    if stream and path == TGI:
        return client.post("/generate_stream", json=asked)
    return client.post(path, json=asked | ({"stream": True} if stream else {}))


def events(answer: TestResponse) -> list[Json]:
    """The data of a stream, but for OpenAI's last word."""
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def refused(answer: TestResponse, path: str, status: int | None = None) -> str:
    """Its message, in the shape of its API and with its own status of refusals unless told."""
    tgi = not path.startswith(("/v1", NATIVE))
    assert answer.status_code == (status or (422 if tgi else 400)), answer.text
    told: Json = answer.get_json()
    if path.startswith("/v1"):
        assert list(told) == ["error"]
        assert list(told["error"]) == ["message", "type", "param", "code"]
        told = told["error"]
    else:
        assert list(told) == (["error", "error_type"] if tgi else ["error"])
    message: str = told["message" if "message" in told else "error"]
    assert "\n" not in message
    return message
