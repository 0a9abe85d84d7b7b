"""A server that only responds at a fixed pace, so that what is measured is the client's own cost.

Implements this project's ``/inference``. ``client.py --self-test`` starts it as a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time

from aiohttp import web

_EVENT = b'data: {"text": " a", "tokens": 1}\n\n'


def make_app(gap_s: float) -> web.Application:
    """An app that sends a token every ``gap_s`` seconds on each stream."""

    async def inference(request: web.Request) -> web.StreamResponse:
        body, start = await request.json(), time.monotonic()
        tokens = int(body["num_tokens"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for k in range(1, tokens + 1):
            await asyncio.sleep(start + k * gap_s - time.monotonic())
            await response.write(_EVENT)
        last = {"done": True, "num_tokens": tokens, "prompt_tokens": len(body["prompt"].split())}
        await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
        return response

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_post("/inference", inference)
    app.router.add_get("/health", health)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    parser.add_argument("--gap-s", type=float, default=0.1, help="seconds between tokens")
    parser.add_argument("--processes", type=int, default=1, help="that share the port")
    args = parser.parse_args()
    with socket.create_server(("127.0.0.1", args.port), backlog=1024) as listener:
        for _ in range(args.processes - 1):
            if os.fork() == 0:
                break
        web.run_app(make_app(args.gap_s), sock=listener, print=None, access_log=None)


if __name__ == "__main__":
    main()
