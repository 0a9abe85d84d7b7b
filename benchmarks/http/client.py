"""Many streams of `/v1/completions` from one process: what was received, and in which time.

    python -m benchmarks.http.client < LOAD.json        # {"url": ..., "bodies": [...]}

It shares the machine's cores with the measured server, so it does as little as possible: it reads,
counts events, and parses only the last one, which holds the usage. Bodies ask for a stream with
usage. Neither torch nor the engine is imported.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, cast
from urllib.parse import urlsplit

_OK = b"HTTP/1.1 200"
_EVENT = b"data: "
_KEPT_BYTES = 4096  # the end of a stream, which holds its usage
_RECEIVED = bytearray(65536)  # shared by all streams, since a new one for each read took 14 us
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass(frozen=True, slots=True)
class Received:
    """Totals of all streams. Lost streams ended without `[DONE]`, or with a different number of
    tokens than requested."""

    streams: int
    lost: int
    tokens: int
    events: int
    seconds: float
    first_loss: str = ""


class _Stream(asyncio.BufferedProtocol):
    """One request on its own connection, up to the end of the response."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.ended = asyncio.get_running_loop().create_future()
        self.events = 0
        self.tail = b""
        self.head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        self._transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(_RECEIVED[:nbytes])
        if len(self.head) < len(_OK):
            self.head += data
        # the beginning of an event may be split
        self.events += (self.tail[1 - len(_EVENT) :] + data).count(_EVENT)
        self.tail = (self.tail + data)[-_KEPT_BYTES:]
        refused = not _OK.startswith(self.head[: len(_OK)])
        if refused or self.tail.endswith(b"\r\n0\r\n\r\n"):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def tokens(self) -> int:
        """Generated tokens from the server's usage; 0 if the stream did not end."""
        found = _USAGE.findall(self.tail)
        return int(found[-1]) if found and b"data: [DONE]" in self.tail else 0


async def load(url: str, bodies: list[dict[str, Any]]) -> Received:
    """All connections first, then all requests at once."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    streams = []
    for body in bodies:
        data = json.dumps(body).encode()
        head = (
            f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        request = head.encode() + data
        _, stream = await loop.create_connection(
            lambda request=request: _Stream(request),  # type: ignore[misc]
            place.hostname or "",
            place.port or 80,
        )
        streams.append(stream)
    start_s = time.perf_counter()
    for stream in streams:
        stream.send()
    await asyncio.gather(*(stream.ended for stream in streams))
    seconds = time.perf_counter() - start_s
    lost = [s for s, body in zip(streams, bodies, strict=True) if s.tokens != body["max_tokens"]]
    return Received(
        streams=len(streams),
        lost=len(lost),
        tokens=sum(stream.tokens for stream in streams),
        events=sum(stream.events for stream in streams),
        seconds=seconds,
        first_loss=(lost[0].head + b" ... " + lost[0].tail).decode(errors="replace")[:2000]
        if lost
        else "",
    )


def main() -> None:
    given = json.load(sys.stdin)
    print(json.dumps(asdict(asyncio.run(load(given["url"], given["bodies"])))))


if __name__ == "__main__":
    main()
