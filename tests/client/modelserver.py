"""A small server with this project's API whose iterations take a known time and no computation.

Started by tests as a process. Modes: one row at a time, whole batches, or joining at every
iteration; an iteration takes ``--base-s`` seconds. With ``--die-after N`` the process kills itself
at the request after so many. Under the address ``/FAULT/AFTER/TAG`` it answers AFTER requests as it
should and fails from then on; TAG gives each test counts of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


ONE = event({"text": " a", "tokens": 1})
SENT = {  # by a server that fails, before it ends the response or falls silent
    "broken": [ONE],
    "falls-silent": [ONE],
    "wrong-types": [ONE, event({"done": True, "num_tokens": 1, "timing": {"ttft_s": "soon"}})],
    "wrong-shape": [event([1, 2])],
    "not-json": [b"data: <html>\n\n"],
    "endless-line": [b"x" * 2**21] * 3,
}
WRONG_STATS = {
    "mode": None, "model": "m", "machine": 3, "counts": [1], "batch-size": 7,
    "total-tokens-handled": "many", "padding-share": "some",
}  # fmt: skip


async def begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def failed(request: web.Request, fault: str) -> web.StreamResponse:
    if fault == "html":
        page = "<html>\n <b>Welcome</b> to nginx</html>"
        return web.Response(text=page, content_type="text/html")
    if fault == "loading":
        return web.json_response({"error": "the model is loading"}, status=503)
    if fault == "silent":
        await asyncio.Event().wait()
    response = await begun(request)
    for part in SENT[fault]:
        await response.write(part)
    await asyncio.sleep(0.002)
    if fault == "falls-silent":
        await asyncio.Event().wait()
    if fault == "broken":
        assert request.transport is not None
        request.transport.abort()
    return response


@dataclass(eq=False)
class Row:
    tokens: int
    arrived: float
    done: int = 0
    first: float = 0.0
    events: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)


class Model:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.limit = 1 if args.mode == "nobatch" else args.limit
        self.queue: list[Row] = []
        self.running: list[Row] = []
        self.arrived = asyncio.Event()
        self.served, self.tokens, self.rows = 0, 0, list[int]()
        self.asked = Counter[str]()

    async def run(self) -> None:
        while True:
            if self.args.mode == "dynamic" or not self.running:
                take = self.limit - len(self.running)
                self.running += self.queue[:take]
                del self.queue[:take]
            if not self.running:
                self.arrived.clear()
                await self.arrived.wait()
                continue
            await asyncio.sleep(self.args.base_s)
            self.rows.append(len(self.running))
            for row in self.running:
                if row.done < row.tokens:
                    row.done += 1
                    row.first = row.first or time.monotonic()
                    self.tokens += 1
                    row.events.put_nowait(True)
            ended = [row for row in self.running if row.done == row.tokens]
            if self.args.mode != "static" or len(ended) == len(self.running):
                for row in ended:
                    row.events.put_nowait(False)
                    self.running.remove(row)

    async def inference(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "stream" in body and self.args.refuses_streams:
            return web.json_response({"error": "unknown field stream"}, status=400)
        self.served += 1
        if self.served > self.args.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        row = Row(int(body["num_tokens"]), time.monotonic())
        self.queue.append(row)
        self.arrived.set()
        try:
            return await self.answer(request, body, row)
        finally:
            for rows in (self.queue, self.running):
                if row in rows:
                    rows.remove(row)

    async def answer(
        self, request: web.Request, body: dict[str, Any], row: Row
    ) -> web.StreamResponse:
        response = await begun(request) if body.get("stream") else None
        while await row.events.get():
            if response is not None:
                await response.write(ONE)
        said = " a" * row.tokens
        done = {
            "completion": body["prompt"] + said, "generated": said, "num_tokens": row.tokens,
            "prompt_tokens": len(body["prompt"].split()), "seed": body.get("seed"),
            "timing": {"queue_s": 0.0, "ttft_s": row.first - row.arrived},
        }  # fmt: skip
        if response is None:
            return web.json_response(done)
        await response.write(event({"done": True, **done}))
        return response

    async def faulty(self, request: web.Request) -> web.StreamResponse:
        """`busy` refuses what is more than AFTER at once; others fail after so many."""
        fault, after = request.match_info["fault"], int(request.match_info["after"])
        self.asked[request.path] += 1
        if self.asked[request.path] > after and fault != "busy":
            return await failed(request, fault)
        try:
            if self.asked[request.path] > after:
                return web.json_response({"error": "too many requests wait"}, status=429)
            return await self.inference(request)
        finally:
            self.asked[request.path] -= fault == "busy"

    async def stats(self, request: web.Request) -> web.Response:
        if "fault" in request.match_info:
            if request.match_info["fault"] == "wrong-stats":
                return web.json_response(WRONG_STATS)
            raise web.HTTPNotFound
        return web.json_response(
            {
                "mode": self.args.mode,
                "model": {"name": "sleep", "dtype": "f4", "note": "This model only sleeps."},
                "machine": {"gpu": "H200", "cpu": "Xeon", "cores": 16},
                "total-tokens-handled": self.tokens,
                "counts": {"waiting": len(self.queue), "running": len(self.running)},
                "batch-size": {"mean": sum(self.rows) / len(self.rows) if self.rows else None},
                "padding-share": 0.0,
            }
        )

    async def reset(self, request: web.Request) -> web.Response:
        self.tokens, self.rows = 0, []
        return web.json_response({})


async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def make_app(args: argparse.Namespace) -> web.Application:
    app, model = web.Application(), Model(args)
    app[TASK] = asyncio.create_task(model.run())
    app.router.add_post("/inference", model.inference)
    app.router.add_post("/stats/reset", model.reset)
    app.router.add_post("/{fault}/{after}/{tag}/inference", model.faulty)
    for under in ("", "/{fault}/{after}/{tag}"):
        app.router.add_get(under + "/stats", model.stats)
        app.router.add_get(under + "/health", health)
    return app


TASK = web.AppKey("task", asyncio.Task[None])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", default="dynamic", choices=("nobatch", "static", "dynamic"))
    parser.add_argument("--base-s", type=float, default=0.002)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--cors-allow-origin")  # for the live page, which it has not
    parser.add_argument("--refuses-streams", type=bool, default=False)
    parser.add_argument("--die-after", type=float, default=float("inf"))
    args = parser.parse_args()
    web.run_app(make_app(args), host="127.0.0.1", port=args.port, print=None, access_log=None,
                handler_cancellation=True, shutdown_timeout=0.1)  # fmt: skip


if __name__ == "__main__":
    main()
