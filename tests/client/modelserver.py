"""A small server with this project's API whose iterations take a known time and no computation.

Started by tests as a process. Modes: one row at a time, whole batches, or joining at every
iteration; an iteration takes ``--base-s`` seconds. Faults can be switched on. Under the address
``/FAULT/AFTER/TAG`` it answers AFTER requests as it should and fails from then on; TAG gives each
test counts of its own.
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

SERVED = web.AppKey("served", Counter[str])
RUNNING = web.AppKey("running", Counter[str])
TOKEN_S = 0.002
BATCH_S = 0.5


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


ONE = event({"text": " a", "tokens": 1})


async def streamed(request: web.Request, *parts: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(TOKEN_S)
    return response


def ending(body: dict[str, Any], **timing: float) -> dict[str, Any]:
    """The last event of a stream, or the whole response."""
    said = " a" * int(body["num_tokens"])
    return {
        "completion": body["prompt"] + said, "generated": said, "num_tokens": body["num_tokens"],
        "prompt_tokens": len(body["prompt"].split()), "seed": body.get("seed"),
        "timing": {"queue_s": 0.0, **timing},
    }  # fmt: skip


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    done = ending(body, ttft_s=TOKEN_S)
    if not body.get("stream"):
        return web.json_response(done)
    return await streamed(request, *[ONE] * body["num_tokens"], event({"done": True, **done}))


async def late(request: web.Request) -> web.StreamResponse:
    """As a static batch: all tokens at its end."""
    await asyncio.sleep(BATCH_S)
    return await answer(request)


async def broken(request: web.Request) -> web.StreamResponse:
    response = await streamed(request, ONE)
    assert request.transport is not None
    request.transport.abort()
    return response


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def falls_silent(request: web.Request) -> web.StreamResponse:
    await streamed(request, ONE)
    return await silent(request)


async def html(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>\n <b>Welcome</b> to nginx</html>", content_type="text/html")


async def wrong_types(request: web.Request) -> web.StreamResponse:
    done = {"done": True, "num_tokens": 1, "timing": {"ttft_s": "soon"}}
    return await streamed(request, ONE, event(done))


async def wrong_shape(request: web.Request) -> web.StreamResponse:
    return await streamed(request, event([1, 2]))


async def not_json(request: web.Request) -> web.StreamResponse:
    return await streamed(request, b"data: <html>\n\n")


async def endless_line(request: web.Request) -> web.StreamResponse:
    return await streamed(request, *[b"x" * 2**21] * 3)


async def loading(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "the model is loading"}, status=503)


FAULTS = {
    "broken": broken, "silent": silent, "falls-silent": falls_silent, "html": html,
    "wrong-types": wrong_types, "wrong-shape": wrong_shape, "not-json": not_json,
    "endless-line": endless_line, "loading": loading, "wrong-stats": answer,
    "late": late,
}  # fmt: skip


async def faulty(request: web.Request) -> web.StreamResponse:
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


async def wrong_stats(request: web.Request) -> web.Response:
    if request.match_info["fault"] != "wrong-stats":
        raise web.HTTPNotFound
    wrong = {
        "mode": None, "model": "m", "machine": 3, "counts": [1], "batch-size": 7,
        "total-tokens-handled": "many", "padding-share": "some", "columns": 4, "iterations": "x",
    }  # fmt: skip
    return web.json_response(wrong)


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
            return await respond(request, body, me)
        finally:
            me.gone = True

    async def respond(
        request: web.Request, body: dict[str, Any], me: Waiting
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        streaming = bool(body.get("stream"))
        if streaming:
            await response.prepare(request)
        while await me.events.get():
            if streaming:
                await response.write(ONE)
        now = time.monotonic()
        done = ending(body, ttft_s=(me.first or 0.0) - me.arrived, latency_s=now - me.arrived)
        if not streaming:
            return web.json_response(done)
        await response.write(event({"done": True, **done}))
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
    app[SERVED], app[RUNNING] = Counter(), Counter()
    under = "/{fault}/{after}/{tag}"
    app.router.add_get(under + "/health", health)
    app.router.add_get(under + "/stats", wrong_stats)
    app.router.add_get(under + "/stats/iterations", wrong_stats)
    app.router.add_post(under + "/inference", faulty)
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
                handler_cancellation=True, shutdown_timeout=0.1)  # fmt: skip


if __name__ == "__main__":
    main()
