"""The upstream of the router's benchmark: responds at once, or streams tokens at a given pace.

    python -m benchmarks.router.null PORT

Independent of the router. A chat body with "stream": true and "tokens": n, "rate": r receives n
events, r a second; any other receives a short response without delay.
"""

import asyncio
import json
import sys

from aiohttp import web

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if not body.get("stream"):
        return web.Response(body=ANSWER, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    loop = asyncio.get_running_loop()
    at = loop.time()
    for _ in range(body["tokens"]):
        at += 1 / body["rate"]
        await asyncio.sleep(at - loop.time())
        await response.write(EVENT)
    await response.write(b"data: [DONE]\n\n")
    return response


async def models(request: web.Request) -> web.Response:
    return web.Response(body=MODELS, content_type="application/json")


def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    web.run_app(
        app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None, backlog=4096
    )


if __name__ == "__main__":
    main()
