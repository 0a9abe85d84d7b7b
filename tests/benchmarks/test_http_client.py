"""The load client, against a server that sends what a test specifies."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.http.client import Received, load

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def played(pieces: list[bytes], max_tokens: int = 2) -> Received:
    async def play() -> Received:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await load(
                f"http://127.0.0.1:{port}/v1/completions", [{"max_tokens": max_tokens}]
            )

    return asyncio.run(play())


WHOLE = HEAD + chunk(EVENT) + chunk(EVENT) + chunk(USAGE) + chunk(DONE) + END


def test_a_whole_stream_counts_with_the_tokens_of_its_usage_wherever_it_is_cut() -> None:
    for length in (1, 7, len(WHOLE)):
        received = played([WHOLE[i : i + length] for i in range(0, len(WHOLE), length)])
        assert (received.lost, received.tokens, received.events) == (0, 2, 4)


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + chunk(EVENT)],  # broken off
        [HEAD + chunk(EVENT) + chunk(USAGE) + END],  # ended, and not done
        [b"HTTP/1.1 429 TOO MANY REQUESTS\r\nContent-Length: 2\r\n\r\n{}"],
    ],
)
def test_a_stream_that_is_not_whole_is_lost(pieces: list[bytes]) -> None:
    received = played(pieces)
    assert (received.lost, received.tokens) == (1, 0)
    assert played([WHOLE], max_tokens=3).lost == 1  # too few tokens
