"""Starts the model server and the HTTP server, restarts them if they die, and ends both in order.

The model server supervises its own shards (`model_server/group.py`): if one dies or hangs, all are
restarted, while the HTTP server keeps its requests.

If the launcher is killed, the HTTP server drains, and the model server works until it has. Its
standard input is a pipe that the other two hold open, so it notices the end of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.config import LauncherConfig
from launcher.processes import Child, json_line, plain_line, tied
from serving.config import Config

ROOT = Path(__file__).resolve().parent.parent
SERVER, MODEL_SERVER = "server", "model-server"
DRAIN_GRACE_S = 20.0  # beyond the server's own drain timeout
MODEL_SERVER_END_S = 15.0
POLL_S = 0.25
MOST_DELAY_S = 30.0
STABLE_S = 60.0  # after this time without a failure, earlier ones no longer count


class StartError(Exception):
    """A process ended before the model was ready for the first time."""


class Launcher:
    """`run` returns the exit status: 0 after SIGTERM or SIGINT, 1 if nothing could be served."""

    def __init__(self, config: LauncherConfig, server: Config) -> None:
        self.config = config
        self.server_config = server
        self._say = json_line if server.log_format == "json" else plain_line
        self._stopping = asyncio.Event()
        self._children: dict[str, Child] = {}
        self._ready_once = False
        self._failures = 0
        self._used_by, self._use = os.pipe()  # of the model server

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with tempfile.TemporaryDirectory(prefix="effective-batching-") as folder:
            address = f"unix:{self.config.socket or f'{folder}/model'}"
            announcing = asyncio.create_task(self._announce())
            try:
                await self._supervise(
                    {MODEL_SERVER: self._model_server(address), SERVER: self._server(address)}
                )
            except StartError as error:
                self._note(f"error: {error}")
                return 1
            finally:
                announcing.cancel()
                await self._end()
        return 0

    async def _supervise(self, commands: dict[str, list[str]]) -> None:
        """Runs until the launcher is stopped. Raises StartError."""
        for name, command in commands.items():
            await self._start(name, command)
        stopping = asyncio.create_task(self._stopping.wait())
        while True:
            ends = [child.ended for child in self._children.values()]
            await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return
            for name, child in list(self._children.items()):
                if child.ended.done():
                    await self._died(child)
                    await self._start(name, commands[name])

    async def _died(self, child: Child) -> None:
        """Logs the failure and waits, longer after each failure. Raises StartError."""
        status = child.ended.result()
        if not self._ready_once:
            raise StartError(
                f"{child.name} ended with status {status} before the model was ready; "
                "the reason is in its last lines above"
            )
        if time.monotonic() - child.started_s > STABLE_S:
            self._failures = 0
        delay_s = min(MOST_DELAY_S, 0.5 * 2.0**self._failures) if self._failures else 0.0
        self._failures += 1
        self._note(f"{child.name} ended with status {status}; restarted in {delay_s:g} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)

    def _model_server(self, address: str) -> list[str]:
        config = self.config
        met = f"{config.master_addr}:{config.master_port}"
        return [
            *("-P", "-m", "model_server", "serve", "--listen", address),
            *("--shards", str(config.shards)),
            *("--end-with-stdin", "true"),
            *(("--rendezvous", met) if config.master_port else ()),
            *(("--record", model_record(record)) if (record := self.server_config.record) else ()),
        ]

    def _server(self, address: str) -> list[str]:
        return [str(ROOT / "app.py"), self.server_config.mode, "--remote-model", address]

    async def _start(self, name: str, args: Sequence[str]) -> None:
        env = {**os.environ, **self.server_config.as_environment(), "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        if self.config.hub_cache is not None:
            env["HF_HUB_CACHE"] = self.config.hub_cache
        command = [sys.executable, *args]
        if name == MODEL_SERVER:
            child = await Child.start(name, command, env, self._say, stdin=self._used_by)
        else:
            child = await Child.start(name, tied(command), env, self._say, holding=[self._use])
        self._children[name] = child
        self._note(f"{name} started, pid {child.pid}")

    async def _announce(self) -> None:
        """Logs when the model is ready, at first and after each restart."""
        was_ready = False
        while True:
            ready = await is_ready(self.server_config.host, self.server_config.port)
            if ready and not was_ready:
                self._ready_once = True
                self._note(f"ready on {self.server_config.url}")
            was_ready = ready
            await asyncio.sleep(POLL_S)

    async def _end(self) -> None:
        """Ends the server first, so that it drains while the model still works."""
        limits = {
            SERVER: self.server_config.drain_timeout + DRAIN_GRACE_S,
            MODEL_SERVER: MODEL_SERVER_END_S,
        }
        for name, limit_s in limits.items():
            if child := self._children.get(name):
                if not child.ended.done():
                    self._note(f"{name} is asked to end within {limit_s:g} s")
                await child.end(signal.SIGTERM, limit_s)

    def _note(self, text: str) -> None:
        self._say("launcher", text)


def model_record(path: str) -> str:
    """The model server's file beside the server's: each process writes a file of its own."""
    server = Path(path)
    return str(server.with_stem(f"{server.stem}-model"))


async def is_ready(host: str, port: int) -> bool:
    """Whether `GET /health` returns 200."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(reachable, port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
