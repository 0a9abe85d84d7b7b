"""A server that begins to fail: ``/FAULT/AFTER/TAG`` is the address of one with a fault.

It speaks this project's API under that address, answers AFTER requests as it should and fails
from then on; TAG gives each test counts of its own. One process serves them all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from typing import Any

from aiohttp import web

SERVED = web.AppKey("served", Counter[str])
RUNNING = web.AppKey("running", Counter[str])
TOKEN_S = 0.002
BATCH_S = 0.5


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def streamed(request: web.Request, *parts: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(TOKEN_S)
    return response


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    tokens = body["num_tokens"]
    done: dict[str, Any] = {
        "completion": body["prompt"], "generated": " a" * tokens, "num_tokens": tokens,
        "prompt_tokens": 2, "timing": {"queue_s": 0.0, "ttft_s": TOKEN_S},
    }  # fmt: skip
    if not body.get("stream"):
        return web.json_response(done)
    one = event({"text": " a", "tokens": 1})
    return await streamed(request, *[one] * tokens, event({"done": True, **done}))


async def late(request: web.Request) -> web.StreamResponse:
    """As a static batch: all tokens at its end."""
    await asyncio.sleep(BATCH_S)
    return await answer(request)


async def broken(request: web.Request) -> web.StreamResponse:
    response = await streamed(request, event({"text": " a", "tokens": 1}))
    assert request.transport is not None
    request.transport.abort()
    return response


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def falls_silent(request: web.Request) -> web.StreamResponse:
    await streamed(request, event({"text": " a", "tokens": 1}))
    return await silent(request)


async def html(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>\n <b>Welcome</b> to nginx</html>", content_type="text/html")


async def wrong_types(request: web.Request) -> web.StreamResponse:
    done = {"done": True, "num_tokens": 1, "timing": {"ttft_s": "soon"}}
    return await streamed(request, event({"text": " a", "tokens": 1}), event(done))


async def wrong_shape(request: web.Request) -> web.StreamResponse:
    return await streamed(request, event([1, 2]))


async def not_json(request: web.Request) -> web.StreamResponse:
    return await streamed(request, b"data: <html>\n\n")


async def endless_line(request: web.Request) -> web.StreamResponse:
    return await streamed(request, *[b"x" * 2**21] * 3)


async def loading(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "the model is loading"}, status=503)


async def unrouted(request: web.Request) -> web.StreamResponse:
    """As a router that knows no server of the model."""
    return web.json_response({"error": "No upstream found with m"}, status=422)


FAULTS = {
    "broken": broken, "silent": silent, "falls-silent": falls_silent, "html": html,
    "wrong-types": wrong_types, "wrong-shape": wrong_shape, "not-json": not_json,
    "endless-line": endless_line, "loading": loading, "none": answer, "wrong-stats": answer,
    "late": late, "unrouted": unrouted,
}  # fmt: skip


async def inference(request: web.Request) -> web.StreamResponse:
    fault, after = request.match_info["fault"], int(request.match_info["after"])
    address = request.path
    if fault == "busy":  # refuses what is more than AFTER at once
        request.app[RUNNING][address] += 1
        try:
            if request.app[RUNNING][address] > after:
                return web.json_response({"error": "too many requests wait"}, status=429)
            return await answer(request)
        finally:
            request.app[RUNNING][address] -= 1
    request.app[SERVED][address] += 1
    good = request.app[SERVED][address] <= after
    return await (answer if good else FAULTS[fault])(request)


async def stats(request: web.Request) -> web.Response:
    if request.match_info["fault"] != "wrong-stats":
        raise web.HTTPNotFound
    wrong = {
        "mode": None, "model": "m", "machine": 3, "counts": [1], "batch-size": 7,
        "total-tokens-handled": "many", "padding-share": "some", "columns": 4, "iterations": "x",
    }  # fmt: skip
    return web.json_response(wrong)


async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = web.Application()
    app[SERVED], app[RUNNING] = Counter(), Counter()
    under = "/{fault}/{after}/{tag}"
    app.router.add_get("/health", health)
    app.router.add_get(under + "/health", health)
    app.router.add_get(under + "/stats", stats)
    app.router.add_get(under + "/stats/iterations", stats)
    app.router.add_post(under + "/inference", inference)
    web.run_app(
        app, host="127.0.0.1", port=parser.parse_args().port, print=None, access_log=None,
        handler_cancellation=True, shutdown_timeout=0.1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
