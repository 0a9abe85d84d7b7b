"""How late tokens come that pass a router: an upstream that sends each at its time, and a client
that reads many streams. Both do as little as possible, since they share the machine with the
router.

    python -m benchmarks.router_streams serve --port P      # the upstream
    python -m benchmarks.router_streams read URL STREAMS    # the client; prints a line of JSON
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import uvloop

TOKENS = 100  # of each stream
GAP_S = 0.1  # between them
PATH = "/v1/completions"
MODELS = b'{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "hello"}]}'
BODY = b'{"model": "m", "prompt": "x", "stream": true}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"
SENT = re.compile(rb'"sent": ([\d.]+)')


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class PacedUpstream(asyncio.Protocol):
    """A token every GAP_S on each stream, with the moment at which it was sent."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.came = b""
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.came += data
        is_get = self.came.startswith(b"GET")
        if not is_get and not self.came.endswith((b"}", b"\r\n0\r\n\r\n")):
            return
        if is_get or b'"stream":true' not in self.came.replace(b" ", b""):
            length = b"Content-Length: %d" % len(MODELS)
            self.transport.write(HEAD % (b"application/json", length) + MODELS)
        else:
            self.transport.write(HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
            self.left = TOKENS
            self.loop.call_later(GAP_S, self.token)
        self.came = b""

    def token(self) -> None:
        if self.transport.is_closing():
            return
        self.left -= 1
        event = b'data: {"choices": [{"index": 0, "text": "hello"}], "sent": %.6f}\n\n'
        self.transport.write(chunk(event % time.monotonic()))
        if self.left:
            self.loop.call_later(GAP_S, self.token)
        else:
            self.transport.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


class StreamReader(asyncio.Protocol):
    """Reads one stream: the lag of each token, in seconds."""

    def __init__(self, host: str, lags: list[float]) -> None:
        self.head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self.lags = lags
        self.came = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        length = f"Content-Length: {len(BODY)}\r\n\r\n"
        cast(asyncio.Transport, transport).write((self.head + length).encode() + BODY)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        whole, end, self.came = (self.came + data).rpartition(b"\n\n")
        self.lags += [now - float(sent) for sent in SENT.findall(whole)]
        if b"[DONE]" in whole + end and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def serve(port: int) -> None:
    listener = await asyncio.get_running_loop().create_server(
        PacedUpstream, "127.0.0.1", port, backlog=4096
    )
    await listener.serve_forever()


async def read(url: str, streams: int) -> dict[str, float]:
    """The p99 and the median of all tokens' lags in milliseconds, and the tokens that are missing.
    Streams begin at any time within a gap."""
    parts, lags = urlsplit(url), list[float]()
    clients = []
    for _ in range(streams):
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: StreamReader(parts.netloc, lags), parts.hostname or "", parts.port or 80
        )
        clients.append(client)
        await asyncio.sleep(GAP_S / streams)
    await asyncio.gather(*(client.ended for client in clients))
    p50, p99 = np.percentile(lags, [50, 99]) * 1e3 if lags else (np.inf, np.inf)
    missing = streams * TOKENS - len(lags)
    return {"lag_p99_ms": float(p99), "lag_p50_ms": float(p50), "missing": float(missing)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("serve").add_argument("--port", type=int, required=True)
    reading = roles.add_parser("read")
    reading.add_argument("url")
    reading.add_argument("streams", type=int)
    args = parser.parse_args()
    if args.role == "serve":
        uvloop.run(serve(args.port))
    else:
        print(json.dumps(uvloop.run(read(args.url, args.streams))), file=sys.stdout)


if __name__ == "__main__":
    main()
