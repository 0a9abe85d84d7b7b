"""Test upstreams: real HTTP servers with behaviour set from outside, many in one process.

The process prints the port of its control server, where upstreams are made, told how to behave,
held, released, stopped and asked what they saw; with `--upstream PORT` one is there at once.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import logging
import multiprocessing
import socket
from typing import Any

from aiohttp import web

EVENTS = 5


def listening_socket(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class TestUpstream:
    """One OpenAI-like server. Behaviour keys: models, models_delay, models_status, health_status,
    status, headers, delay, hold (wait for release before answering), events, interval, cut_after
    (streams: abort after so many events), hold_after (streams: wait for release after so many),
    drop ("before": abort unanswered, "body": abort half-way through the body), separator, raw
    (body, base64)."""

    def __init__(self, behaviour: dict[str, Any], port: int = 0) -> None:
        self.behaviour: dict[str, Any] = {"models": ["m"], **behaviour}
        self.port = port
        self.gate = asyncio.Event()
        self.current = self.peak = self.cancelled = 0
        self.seen: list[dict[str, Any]] = []
        self.runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{path:.*}", self.infer)
        self.runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05
        )
        await self.runner.setup()
        sock = listening_socket(self.port)
        self.port = sock.getsockname()[1]
        await web.SockSite(self.runner, sock).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def models(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.behaviour.get("models_delay", 0))
        status = self.behaviour.get("models_status", 200)
        data = [{"id": m, "object": "model", "created": 1} for m in self.behaviour["models"]]
        return web.json_response({"object": "list", "data": data}, status=status)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.behaviour.get("health_status", 200))

    async def infer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        with contextlib.suppress(ValueError):
            body = json.loads(raw)
        self.seen.append(
            {
                "path": request.raw_path,
                "headers": {k.lower(): v for k, v in request.headers.items()},
                "body": base64.b64encode(raw).decode(),
            }
        )
        self.current += 1
        self.peak = max(self.peak, self.current)
        try:
            return await self.answer(request, body, {**self.behaviour, **body.get("behave", {})})
        except (asyncio.CancelledError, ConnectionResetError):  # while it waits, or writes
            self.cancelled += 1
            raise
        finally:
            self.current -= 1

    async def answer(
        self, request: web.Request, body: dict[str, Any], how: dict[str, Any]
    ) -> web.StreamResponse:
        if how.get("hold"):
            await self.gate.wait()
        await asyncio.sleep(how.get("delay", 0))
        if how.get("drop") == "before":
            return self.abort(request)
        headers = how.get("headers", {})
        status = how.get("status", 200)
        if status == 200 and (body.get("stream") or request.path == "/generate_stream"):
            return await self.stream(request, body, how, headers)
        text = "".join(f" w{i}" for i in range(how.get("events", EVENTS)))
        chat = request.path.endswith("chat/completions")
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        answer = {
            "id": "cmpl-1",
            "object": "chat.completion" if chat else "text_completion",
            "created": 1,
            "model": body.get("model", ""),
            "choices": [{"index": 0, "finish_reason": "stop", **choice}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6},
        }
        raw = base64.b64decode(how["raw"]) if "raw" in how else json.dumps(answer).encode()
        if how.get("drop") == "body":
            response = web.StreamResponse(status=status, headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"half": ')
            return self.abort(request)
        return web.Response(
            body=raw, status=status, headers={"Content-Type": "application/json", **headers}
        )

    async def stream(
        self, request: web.Request, body: dict[str, Any], how: dict[str, Any], headers: Any
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
        await response.prepare(request)
        chat = request.path.endswith("chat/completions")
        end = how.get("separator", "\n\n")
        for i in range(how.get("events", EVENTS)):
            if i == how.get("hold_after"):
                await self.gate.wait()
            if i == how.get("cut_after"):
                await response.write(b'data: {"unfinished":')
                return self.abort(request)
            choice = {"delta": {"content": f" w{i}"}} if chat else {"text": f" w{i}"}
            event = {
                "id": "cmpl-1",
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": 1,
                "model": body.get("model", ""),
                "choices": [{"index": 0, "finish_reason": None, **choice}],
            }
            await response.write(f"data: {json.dumps(event)}{end}".encode())
            await asyncio.sleep(how.get("interval", 0))
        await response.write(f"data: [DONE]{end}".encode())
        return response

    @staticmethod
    def abort(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError


class Farm:
    """The control API."""

    def __init__(self) -> None:
        self.upstreams: dict[str, TestUpstream] = {}

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        verb = request.match_info["verb"]
        if verb == "new":
            return web.json_response({"url": await self.new(body, body.pop("port", 0))})
        upstream = self.upstreams[body.pop("url")]
        if verb == "behave":
            upstream.behaviour = {**upstream.behaviour, **body}
        elif verb == "release":
            upstream.gate.set()
        elif verb == "stop":
            await upstream.stop()
        elif verb == "start":
            await upstream.start()
        facts = {k: getattr(upstream, k) for k in ("current", "peak", "cancelled", "seen")}
        return web.json_response(facts)

    async def new(self, behaviour: dict[str, Any], port: int = 0) -> str:
        upstream = TestUpstream(behaviour, port)
        await upstream.start()
        url = f"http://127.0.0.1:{upstream.port}"
        self.upstreams[url] = upstream
        return url


async def main() -> None:
    logging.disable()  # aborted connections are the purpose here
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", type=int, help="start one on this port")
    parser.add_argument("--behave", type=json.loads, default={})
    args = parser.parse_args()
    farm = Farm()
    if args.upstream is not None:
        await farm.new(args.behave, args.upstream)
    app = web.Application()
    app.router.add_post("/{verb}", farm.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    sock = listening_socket()
    await web.SockSite(runner, sock).start()
    print(sock.getsockname()[1], flush=True)
    parent = multiprocessing.parent_process()
    assert parent is not None, "run by tests.support.forked"
    # no orphan survives a killed test run
    await asyncio.get_running_loop().run_in_executor(None, parent.join)


if __name__ == "__main__":
    asyncio.run(main())
