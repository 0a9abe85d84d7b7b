"""An inference server that does what a test says: HTTP over real sockets, its behaviour set from
outside.

Any number run on one event loop in a thread of this process. As a command this is one in a process
of its own, which can be killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import multiprocessing
import socket
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

from tests.support.process import PATIENCE_S

EVENTS = 5
SILENT = logging.getLogger(__name__)  # aborted connections are the purpose here
SILENT.disabled = True
T = TypeVar("T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result(PATIENCE_S)


def listening_socket(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class ScriptedUpstream:
    """One OpenAI-like server. Behaviour keys, of which a request may send its own as `behave`:
    models, probe_status, status, headers, delay, hold (wait for release before answering), events,
    interval, cut_after (streams: abort after so many events), hold_after (streams: wait for release
    after so many), drop ("before": abort unanswered, "body": abort half-way through the body),
    separator, raw (body, as Latin-1), answers (makes status and JSON of `METHOD /path` and body),
    said (all that is sent, as Latin-1, HTTP or not; `said_to` one method alone), stalls (`said` has
    no end)."""

    def __init__(self, *models: str, port: int = 0, **behaviour: Any) -> None:
        """`models`: `m` if there are none."""
        self.behaviour: dict[str, Any] = {"models": models or ["m"], **behaviour}
        self.port = port
        self.gate = asyncio.Event()
        self.current = self.cancelled = 0
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def behave(self, **behaviour: Any) -> None:
        self.behaviour = {**self.behaviour, **behaviour}

    def start(self) -> ScriptedUpstream:
        _run(self._start())
        return self

    def release(self) -> None:
        """Ends what waits at it."""
        _loop().call_soon_threadsafe(self.gate.set)

    def close(self) -> None:
        if self.runner is not None:
            _run(self.runner.cleanup())
            self.runner = None

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.runner = web.AppRunner(
            app, access_log=None, logger=SILENT, handler_cancellation=True, shutdown_timeout=0.05
        )
        await self.runner.setup()
        sock = listening_socket(self.port)
        self.port = sock.getsockname()[1]
        await web.SockSite(self.runner, sock).start()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        how = self.behaviour
        if "said" in how and how.get("said_to") in (None, request.method):
            return await self.say(request, how)
        if request.method == "GET" and request.path in ("/v1/models", "/health"):
            data = [{"id": model, "object": "model", "created": 1} for model in how["models"]]
            listed = {"object": "list", "data": data}
            return web.json_response(listed, status=how.get("probe_status", 200))
        raw = await request.read()
        if "answers" in how:
            status, shown = how["answers"](f"{request.method} {request.path}", raw)
            return web.json_response(shown, status=status)
        body: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            body = json.loads(raw)
        self.bodies.append(raw)
        self.paths.append(request.raw_path)
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        self.current += 1
        try:
            return await self.answer(request, body, {**how, **body.get("behave", {})})
        except (asyncio.CancelledError, ConnectionResetError):  # while it waits, or writes
            self.cancelled += 1
            raise
        finally:
            self.current -= 1

    async def say(self, request: web.Request, how: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        await request.read()
        request.transport.write(how["said"].encode("latin-1"))
        if how.get("stalls"):
            await self.gate.wait()
        request.transport.close()
        raise ConnectionResetError

    async def answer(
        self, request: web.Request, body: dict[str, Any], how: dict[str, Any]
    ) -> web.StreamResponse:
        if how.get("hold"):
            await self.gate.wait()
        await asyncio.sleep(how.get("delay", 0))
        if how.get("drop") == "before":
            return self.abort(request)
        status = how.get("status", 200)
        if status == 200 and (body.get("stream") or request.path == "/generate_stream"):
            return await self.stream(request, body, how)
        if how.get("drop") == "body":
            response = web.StreamResponse(status=status, headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"half": ')
            return self.abort(request)
        text = "".join(f" w{i}" for i in range(how.get("events", EVENTS)))
        shown = self.shown(body, text) | {"usage": {"total_tokens": 6}}
        raw = how["raw"].encode("latin-1") if "raw" in how else json.dumps(shown).encode()
        headers = {"Content-Type": "application/json", **how.get("headers", {})}
        return web.Response(body=raw, status=status, headers=headers)

    async def stream(
        self, request: web.Request, body: dict[str, Any], how: dict[str, Any]
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", **how.get("headers", {})}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        end = how.get("separator", "\n\n")
        for i in range(how.get("events", EVENTS)):
            if i == how.get("hold_after"):
                await self.gate.wait()
            if i == how.get("cut_after"):
                await response.write(b'data: {"unfinished":')
                return self.abort(request)
            event = self.shown(body, f" w{i}")
            await response.write(f"data: {json.dumps(event)}{end}".encode())
            await asyncio.sleep(how.get("interval", 0))
        await response.write(f"data: [DONE]{end}".encode())
        return response

    @staticmethod
    def shown(body: dict[str, Any], text: str) -> dict[str, Any]:
        """A completion's object, or one of its chunks."""
        choice = {"index": 0, "finish_reason": None if body.get("stream") else "stop", "text": text}
        fixed = {"id": "cmpl-1", "object": "text_completion", "created": 1}
        return {**fixed, "model": body.get("model", ""), "choices": [choice]}

    @staticmethod
    def abort(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError


if __name__ == "__main__":
    ScriptedUpstream(port=int(sys.argv[1]), **json.loads(sys.argv[2])).start()
    print("started", flush=True)
    parent = multiprocessing.parent_process()
    assert parent is not None, "run by tests.support.forked"
    parent.join()  # no orphan survives a killed test run
