"""Starts the model servers and the HTTP server, restarts what dies, and ends all of them in order.

A shard's death is the group's: its peers wait for it in a collective, so all of them are killed and
started again. The HTTP server stays; it puts its requests back into the queue and goes on when the
group is ready again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from config import Config
from launcher.config import LauncherConfig
from launcher.heartbeat import Heartbeat
from launcher.processes import Child, json_line, plain_line

ROOT = Path(__file__).resolve().parent.parent
SERVER = "server"
DRAIN_GRACE_S = 20.0  # beyond the server's own drain timeout
SHARD_END_S = 5.0
POLL_S = 0.25
MOST_DELAY_S = 30.0
STABLE_S = 60.0  # a process that lived so long does not count as failing again and again


class StartError(Exception):
    """A process ended before the model was ready for the first time."""


class Launcher:
    """`run` returns the exit status: 0 after SIGTERM or SIGINT, 1 where nothing could be served."""

    def __init__(self, config: LauncherConfig, server: Config) -> None:
        self.config = config
        self.server_config = server
        self._say = json_line if server.log_format == "json" else plain_line
        self._stopping = asyncio.Event()
        self._shards: list[Child] = []
        self._server: Child | None = None
        self._ready_once = False
        self._failures = 0
        self._started_s = 0.0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with tempfile.TemporaryDirectory(prefix="effective-batching-") as folder:
            prefix = self.config.socket or f"{folder}/shard"
            self._addresses = [f"unix:{prefix}-{rank}" for rank in range(self.config.shards)]
            waiting = asyncio.create_task(self._announce())
            try:
                await self._supervise()
            except StartError as error:
                self._note(f"error: {error}")
                return 1
            finally:
                waiting.cancel()
                await self._end()
        return 0

    async def _supervise(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        self._shards = await self._start_shards()
        self._server = await self._start_server()
        while not self._stopping.is_set():
            heartbeat = asyncio.create_task(Heartbeat(self._addresses, self._patience_s).lost())
            ends = [child.ended for child in (*self._shards, self._server)]
            await asyncio.wait([stopping, heartbeat, *ends], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                break
            if self._server.ended.done():
                await self._died(self._server)
                self._server = await self._start_server()
            elif dead := next((shard for shard in self._shards if shard.ended.done()), None):
                await self._died(dead)
                await self._restart_shards()
            else:
                rank = heartbeat.result()
                self._note(f"shard {rank} is silent for {self._patience_s:g} s and is killed")
                await self._restart_shards()
            heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heartbeat

    @property
    def _patience_s(self) -> float:
        return self.server_config.model_patience

    async def _died(self, child: Child) -> None:
        """Says so, and waits longer from failure to failure. Raises StartError."""
        status = child.ended.result()
        if not self._ready_once:
            raise StartError(
                f"{child.name} ended with status {status} before the model was ready; "
                "its last lines above say why"
            )
        if time.monotonic() - self._started_s > STABLE_S:
            self._failures = 0
        delay_s = min(MOST_DELAY_S, 0.5 * 2.0**self._failures) if self._failures else 0.0
        self._failures += 1
        self._note(f"{child.name} ended with status {status}; restarted in {delay_s:g} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _restart_shards(self) -> None:
        await asyncio.gather(*(shard.end(signal.SIGKILL, SHARD_END_S) for shard in self._shards))
        self._shards = await self._start_shards()

    async def _start_shards(self) -> list[Child]:
        self._started_s = time.monotonic()
        config, shards = self.config, self.config.shards
        port = config.master_port or free_port(config.master_addr)
        common = [
            *("--shards", str(shards), "--addresses", ",".join(self._addresses)),
            *("--rendezvous", f"{config.master_addr}:{port}"),
        ]
        return [
            await self._start(
                f"shard {rank}",
                [
                    *("-P", "-m", "model_server", "serve", "--listen", address),
                    *(*common, "--rank", str(rank)),
                ],
            )
            for rank, address in enumerate(self._addresses)
        ]

    async def _start_server(self) -> Child:
        return await self._start(
            SERVER,
            [str(ROOT / "app.py"), self.server_config.mode, "--remote-model", self._addresses[0]],
        )

    async def _start(self, name: str, args: Sequence[str]) -> Child:
        env = {**os.environ, **self.server_config.as_environment(), "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        if self.config.hub_cache is not None:
            env["HF_HUB_CACHE"] = self.config.hub_cache
        if self.config.shards > 1 and name != SERVER:
            share = max(1, len(os.sched_getaffinity(0)) // self.config.shards)
            env.setdefault("OMP_NUM_THREADS", str(share))
        child = await Child.start(name, [sys.executable, *args], env, self._say)
        self._note(f"{name} started, pid {child.pid}")
        return child

    async def _announce(self) -> None:
        """Says when the model is ready, at first and after each restart."""
        was_ready = False
        while True:
            ready = await is_ready(self.server_config.host, self.server_config.port)
            if ready and not was_ready:
                self._ready_once = True
                self._note(f"ready on {self.server_config.url}")
            was_ready = ready
            await asyncio.sleep(POLL_S)

    async def _end(self) -> None:
        """The server first, so that it drains while the model still answers."""
        if self._server is not None:
            limit_s = self.server_config.drain_timeout + DRAIN_GRACE_S
            await self._server.end(signal.SIGTERM, limit_s)
        await asyncio.gather(*(shard.end(signal.SIGTERM, SHARD_END_S) for shard in self._shards))

    def _note(self, text: str) -> None:
        self._say("launcher", text)


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


async def is_ready(host: str, port: int) -> bool:
    """Whether `GET /health` is answered with 200."""
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
