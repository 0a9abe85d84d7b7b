"""A link between two hosts that can be cut and healed. What is sent over a cut link is lost, and
no peer is notified; connections that survived a cut are reset when it heals."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Link:
    """From the Unix socket `path` to that of `target`."""

    def __init__(self, path: str, target: str) -> None:
        self.path, self.target = path, target
        self._loop = asyncio.new_event_loop()
        self._writers = set[asyncio.StreamWriter]()
        self._whole = True

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(setattr, self, "_whole", False)

    def heal(self) -> None:
        def heal() -> None:
            self._whole = True
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(heal)

    @contextlib.contextmanager
    def running(self) -> Iterator[Link]:
        server = self._loop.run_until_complete(asyncio.start_unix_server(self._accept, self.path))
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield self
        finally:

            async def end() -> None:
                server.close()
                for writer in list(self._writers):
                    writer.transport.abort()
                await asyncio.sleep(0.05)

            asyncio.run_coroutine_threadsafe(end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                if self._whole:
                    writer.write(data)
                    await writer.drain()
        if self._whole:
            writer.transport.abort()
