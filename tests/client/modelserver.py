"""A small server with this project's API whose iterations take a known time and no computation.

Started by tests as a process. Modes: one row at a time, whole batches, or joining at every
iteration; an iteration takes ``--base-s`` seconds. Faults can be switched on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Waiting:
    tokens: int
    arrived: float
    done: int = 0
    first: float | None = None
    events: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    gone: bool = False


class Loop:
    def __init__(self, mode: str, base_s: float, limit: int) -> None:
        self.mode, self.base_s = mode, base_s
        self.limit = 1 if mode == "nobatch" else limit
        self.queue: list[Waiting] = []
        self.running: list[Waiting] = []
        self.arrived_event = asyncio.Event()
        self.reset()

    def reset(self) -> None:
        self.tokens, self.iterations = 0, list[list[float]]()

    async def run(self) -> None:
        while True:
            self.running = [r for r in self.running if not r.gone]
            self.queue = [r for r in self.queue if not r.gone]
            if self.mode == "dynamic" or not self.running:
                take = self.limit - len(self.running)
                self.running += self.queue[:take]
                del self.queue[:take]
            if not self.running:
                self.arrived_event.clear()
                await self.arrived_event.wait()
                continue
            start = time.monotonic()
            await asyncio.sleep(self.base_s)
            now = time.monotonic()
            self.iterations.append([start, now - start, len(self.running), len(self.running), 0])
            for r in self.running:
                if r.done < r.tokens:
                    r.done += 1
                    r.first = r.first or now
                    self.tokens += 1
                    r.events.put_nowait(1)
            if self.mode == "static" and any(r.done < r.tokens for r in self.running):
                continue
            for r in self.running:
                if r.done == r.tokens:
                    r.events.put_nowait(0)
            self.running = [r for r in self.running if r.done < r.tokens]


def make_app(args: argparse.Namespace) -> web.Application:
    app = web.Application()
    loop = Loop(args.mode, args.base_s, args.limit)
    served = 0

    async def inference(request: web.Request) -> web.StreamResponse:
        nonlocal served
        body = await request.json()
        if "stream" in body and args.fault == "no-stream":
            return web.json_response({"error": "unknown field stream"}, status=400)
        served += 1
        if args.fault == "die" and served > args.fault_after:
            os.kill(os.getpid(), signal.SIGKILL)
        me = Waiting(int(body["num_tokens"]), time.monotonic())
        loop.queue.append(me)
        loop.arrived_event.set()
        try:
            return await answer(request, body, me)
        finally:
            me.gone = True

    async def answer(request: web.Request, body: dict[str, Any], me: Waiting) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        streaming = bool(body.get("stream"))
        if streaming:
            await response.prepare(request)
        while tokens := await me.events.get():
            if streaming:
                event = {"text": " a", "tokens": tokens}
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        done = {
            "completion": body["prompt"] + " a" * me.tokens,
            "generated": " a" * me.tokens,
            "num_tokens": me.tokens,
            "prompt_tokens": len(body["prompt"].split()),
            "seed": body.get("seed"),
            "timing": {
                "queue_s": 0.0,
                "ttft_s": (me.first or 0.0) - me.arrived,
                "latency_s": time.monotonic() - me.arrived,
            },
        }
        if not streaming:
            return web.json_response(done)
        await response.write(b"data: " + json.dumps({"done": True, **done}).encode() + b"\n\n")
        return response

    async def stats(request: web.Request) -> web.Response:
        rows = [line[2] for line in loop.iterations]
        return web.json_response(
            {
                "mode": args.mode,
                "model": {"name": "sleep", "note": "This model only sleeps."},
                "total-tokens-handled": loop.tokens,
                "counts": {"waiting": len(loop.queue), "running": len(loop.running)},
                "batch-size": {"mean": sum(rows) / len(rows) if rows else None},
                "padding-share": 0.0,
            }
        )

    async def iterations(request: web.Request) -> web.Response:
        columns = ["start_s", "duration_s", "rows", "tokens", "padding"]
        return web.json_response({"columns": columns, "iterations": loop.iterations})

    async def reset(request: web.Request) -> web.Response:
        loop.reset()
        return web.json_response({})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def start(app: web.Application) -> None:
        app[_TASK] = asyncio.create_task(loop.run())

    app.on_startup.append(start)
    app.router.add_post("/inference", inference)
    app.router.add_get("/stats", stats)
    app.router.add_get("/stats/iterations", iterations)
    app.router.add_post("/stats/reset", reset)
    app.router.add_get("/health", health)
    return app


_TASK = web.AppKey("task", asyncio.Task[None])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", default="dynamic", choices=("nobatch", "static", "dynamic"))
    parser.add_argument("--base-s", type=float, default=0.002)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--cors-allow-origin")  # for the live page, which it has not
    parser.add_argument("--fault", default="none")
    parser.add_argument("--fault-after", type=int, default=0)
    args = parser.parse_args()
    web.run_app(make_app(args), host="127.0.0.1", port=args.port, print=None, access_log=None,
                handler_cancellation=True)  # fmt: skip


if __name__ == "__main__":
    main()
