"""Clients' connections are bounded, and clients that do not read lose theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from router.http.connections import Connections, set_waiting

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def served(app: web.Application, most: int, patience_s: float) -> AsyncIterator[int]:
    """The port of a server with that many connections."""
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, most, patience_s)
    listener = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
    yield listener.sockets[0].getsockname()[1]
    listener.close()
    await runner.cleanup()


def test_the_connection_that_has_waited_longest_for_its_client_goes_first() -> None:
    async def check() -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            set_waiting(request, False)
            arrived.set()
            await go_on.wait()
            set_waiting(request, True)
            return web.Response(text="done")

        app = web.Application()
        app.router.add_get("/", answer)
        async with served(app, 3, 60) as port, asyncio.timeout(60):
            at_work, to_it = await asyncio.open_connection("127.0.0.1", port)
            to_it.write(REQUEST)
            await arrived.wait()
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
            for reader, writer in clients[:4]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            go_on.set()
            for _, writer in clients[4:]:
                writer.write(REQUEST)
            for reader in (at_work, *(reader for reader, _ in clients[4:])):
                assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
            for writer in (to_it, *(writer for _, writer in clients[4:])):
                writer.close()

    asyncio.run(check())


def test_a_client_that_does_not_read_is_gone() -> None:
    async def check() -> None:
        gone = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(bytes(4096))
            finally:
                gone.set()

        app = web.Application()
        app.router.add_get("/", answer)
        async with served(app, 3, 0.1) as port, asyncio.timeout(60):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(REQUEST)
            await gone.wait()
            writer.close()

    asyncio.run(check())
