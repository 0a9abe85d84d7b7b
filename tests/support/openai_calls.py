"""Requests of OpenAI's API to the handlers in this process, as its tests make them."""

from __future__ import annotations

import json
from typing import Any

from flask.testing import FlaskClient
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from werkzeug.test import TestResponse

from tests.support.dialects import refused

CONTEXT = 1024
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS: dict[str, dict[str, object]] = {
    COMPLETIONS: {"model": "embedded", "prompt": "x"},
    CHAT: {"model": "embedded", "messages": [{"role": "user", "content": "x"}]},
}

Json = dict[str, Any]
Calls = list[tuple[str, str]]


def ask(client: FlaskClient, path: str = COMPLETIONS, **fields: Any) -> TestResponse:
    return client.post(path, json={**PATHS[path], **fields})


def complete(client: FlaskClient, path: str = COMPLETIONS, **fields: Any) -> Json:
    answer = ask(client, path, **fields)
    assert answer.status_code == 200, answer.get_json()
    told: Json = answer.get_json()
    assert isinstance(told["system_fingerprint"], str)
    return told


def chat(client: FlaskClient, **fields: Any) -> Json:
    return complete(client, CHAT, **fields)


def chunks(client: FlaskClient, path: str = COMPLETIONS, **fields: Any) -> list[Json]:
    answer = ask(client, path, stream=True, **fields)
    assert answer.status_code == 200, answer.get_json()
    assert answer.mimetype == "text/event-stream"
    *events, done, rest = answer.get_data(as_text=True).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    parts = [json.loads(line.removeprefix("data: ")) for line in events]
    assert all(line.startswith("data: {") and line.isascii() for line in events)
    assert all(isinstance(part["system_fingerprint"], str) for part in parts)
    return parts


def both(client: FlaskClient, path: str = COMPLETIONS, **fields: Any) -> Json:
    """An answer, which its stream is, too: that of a chat as OpenAI's client puts it together."""
    whole = complete(client, path, **fields)
    *parts, last = chunks(client, path, stream_options={"include_usage": True}, **fields)
    assert last["choices"] == []
    assert counted(last["usage"]) == counted(whole["usage"])
    assert all(part["usage"] is None for part in parts)
    state = ChatCompletionStreamState()
    for number, choice in enumerate(whole["choices"]):
        assert choice["index"] == number
        own = [c for part in parts for c in part["choices"] if c["index"] == number]
        reasons = [part["finish_reason"] for part in own]
        assert reasons == [None] * (len(own) - 1) + [choice["finish_reason"]]
        if path == CHAT:
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            assert own[-1]["delta"] == {}
        else:
            assert "".join(part["text"] for part in own) == choice["text"]
            for key in ("tokens", "token_logprobs", "text_offset") if choice["logprobs"] else ():
                told = [value for part in own for value in part["logprobs"][key]]
                assert told == choice["logprobs"][key]
    if path == CHAT:
        for part in parts:
            state.handle_chunk(ChatCompletionChunk.model_validate(part))
        streamed = state.current_completion_snapshot.model_dump()["choices"]
        for choice, told in zip(whole["choices"], streamed, strict=True):
            for name in ("content", "reasoning_content", "function_call", "refusal"):
                said = [one["message"].get(name) or None for one in (told, choice)]
                assert said[0] == said[1]
            assert calls_of(told["message"]) == calls_of(choice["message"])
            entries = [(one["logprobs"] or {}).get("content") or [] for one in (told, choice)]
            assert entries[0] == entries[1]
    return whole


def counted(usage: Json) -> Json:
    """How much was cached or drafted depends on what was asked before."""
    return {key: count for key, count in usage.items() if not key.endswith("details")}


def alike(body: Json) -> Json:
    """What is the same whenever a request is made, responses of /v1/responses included."""
    own = {"id", "created", "created_at", "completed_at", "system_fingerprint"}
    told = {key: value for key, value in body.items() if key not in own}
    if "output" in body:
        told["output"] = [{**item, "id": "", "call_id": ""} for item in body["output"]]
    return {**told, "usage": counted(body["usage"])}


def calls_of(message: Json) -> Calls:
    """Also checks their ids."""
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    assert all((call["type"], call["id"][:5]) == ("function", "call_") for call in calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def is_error(answer: TestResponse, status: int, param: str | None = None) -> str:
    """Its message."""
    message = refused(answer, "/v1", status)
    assert answer.get_json()["error"]["param"] == param
    return message
