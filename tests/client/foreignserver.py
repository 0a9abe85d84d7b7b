"""A small server that answers as OpenAI's and TGI's documentation says theirs do."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

USAGE = "usage"


async def _stream(
    request: web.Request, events: Iterable[dict[str, Any]], *, done: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": a comment, as proxies send\n\n")
    for event in events:
        await response.write(b"event: message\ndata: " + json.dumps(event).encode() + b"\n\n")
    if done:
        await response.write(b"data: [DONE]\n\n")
    return response


def _refuse(text: str) -> web.Response:
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=400)


async def completions(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if "ignore_eos" in body and request.path.startswith("/pairs"):
        return _refuse("ignore_eos is not known")
    chat = request.path.endswith("chat/completions")
    if body.get("model") != "m":
        return _refuse("the model does not exist")
    text = body["messages"][0]["content"] if chat else body["prompt"]
    tokens = body["max_tokens"]
    usage = {"prompt_tokens": len(text.split()), "completion_tokens": tokens, "total_tokens": 0}

    def choice(piece: str, reason: str | None) -> dict[str, Any]:
        made: dict[str, Any] = {"index": 0, "finish_reason": reason}
        return made | ({"delta": {"content": piece}} if chat else {"text": piece})

    if not body.get("stream"):
        whole: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        said = " a" * tokens
        whole |= {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
        return web.json_response({"choices": [whole], "usage": usage})
    each = 2 if request.path.startswith("/pairs") else 1  # tokens an event
    events: list[dict[str, Any]] = []
    for done in range(each, tokens + each, each):
        events.append({"choices": [choice(" a" * min(each, tokens - done + each), None)]})
        if body["stream_options"].get("continuous_usage_stats"):
            events[-1][USAGE] = {**usage, "completion_tokens": min(done, tokens)}
    if chat:
        events.insert(0, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    events.append({"choices": [choice("", "length")]})
    if body["stream_options"]["include_usage"]:
        events.append({"choices": [], USAGE: usage})
    return await _stream(request, events, done=True)


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})


async def generate(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    tokens = body["parameters"]["max_new_tokens"]
    details = {"finish_reason": "length", "generated_tokens": tokens, "seed": 1}
    if not request.path.endswith("stream"):
        words = [{"id": 1, "text": w, "logprob": None} for w in body["inputs"].split()]
        return web.json_response(
            {"generated_text": " a" * tokens, "details": {**details, "prefill": words}}
        )
    events = [
        {
            "token": {"id": 1, "text": " a", "logprob": -1.0, "special": False},
            "generated_text": " a" * tokens if k == tokens - 1 else None,
            "details": details if k == tokens - 1 else None,
        }
        for k in range(tokens)
    ]
    return await _stream(request, events, done=False)


async def tokenize(request: web.Request) -> web.Response:
    """As if every line but those of five letters were one token."""
    tokens: list[dict[str, Any]] = []
    at = 0
    for line in (await request.json())["inputs"].split("\n"):
        cuts = [0, 2, len(line)] if len(line.strip()) == 5 else [0, len(line)]
        tokens += [
            {"id": len(tokens), "text": line[a:b], "start": at + a, "stop": at + b}
            for a, b in itertools.pairwise(cuts)
        ]
        at += len(line) + 1
    return web.json_response(tokens)


async def health(request: web.Request) -> web.Response:
    return web.Response()


@web.middleware
async def with_key(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.path != "/health" and request.headers.get("Authorization") != "Bearer sesame":
        raise web.HTTPUnauthorized
    answer: web.StreamResponse = await handler(request)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--locked", action="store_true", help="ask for the key 'sesame'")
    app = web.Application(middlewares=[with_key] if parser.parse_args().locked else [])
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/pairs/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", completions)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/generate", generate)
    app.router.add_post("/generate_stream", generate)
    port = parser.parse_args().port
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main()
