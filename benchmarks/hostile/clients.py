"""A hostile client: it sends what its kind says, again and again, until SIGTERM.

    python -m benchmarks.hostile.clients URL KIND NUMBER

It prints a line once it begins, and at the end how often it got each status. A request ends with
its connection. Of several clients, each begins with another of the kind's requests. Neither torch
nor the engine is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

READ_BYTES = 2**13  # at once
TOO_LONG = "7" * 900_000  # within --max-body-bytes
READABLE = "7 " * 6_000  # too many tokens for the model, and not so many that none is counted
LONGEST_STOP, STOPS = 1024, 16
SPACES_ID = 4067  # a token of spaces of the embedded vocabulary


@dataclass(frozen=True, slots=True)
class Kind:
    """``connections`` are open at once; each pauses so long after each READ_BYTES."""

    requests: list[bytes]
    connections: int = 1
    pause_s: float = 0.0


def post(path: str, body: object, headers: str = "Content-Type: application/json") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(data)}\r\n{headers}\r\n\r\n"
    )
    return head.encode() + data


def completion(**fields: Any) -> bytes:
    return post("/v1/completions", {"model": "embedded", "prompt": "x", "max_tokens": 1, **fields})


def chat(*contents: str) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    body = {"model": "embedded", "messages": messages, "max_tokens": 1}
    return post("/v1/chat/completions", body)


def text(text: str) -> list[bytes]:
    """On each path that reads one."""
    truncated = {"inputs": text, "parameters": {"max_new_tokens": 1, "truncate": 50}}
    return [
        completion(prompt=text), chat(text), post("/generate", truncated),
        post("/tokenize", {"model": "embedded", "prompt": text}),
    ]  # fmt: skip


def ordinary_streams() -> Kind:
    """Not hostile: what four clients take in any case."""
    return Kind([completion(max_tokens=300, stream=True, ignore_eos=True)])


def refused_prompts() -> Kind:
    return Kind(text(TOO_LONG))


def read_prompts() -> Kind:
    return Kind(text(READABLE))


def many_strings() -> Kind:
    """As many as allowed."""
    return Kind([completion(prompt=["7"] * 16_384), chat(*["7"] * 4_095)])


def stop_strings() -> Kind:
    """As long and as many as allowed; those of the second request are nearly complete for long."""
    stops = [chr(65 + i) * (LONGEST_STOP - 1) + "!" for i in range(STOPS)]
    spaces = [" " * (LONGEST_STOP - 1 - i) + "!" for i in range(STOPS)]
    held = {"logit_bias": {SPACES_ID: 100}, "max_tokens": 300, "ignore_eos": True, "stop": spaces}
    return Kind([completion(stop=stops), completion(stream=True, temperature=0, **held)])


def special_tokens() -> Kind:
    """The beginnings of names of special tokens, and of calls of tools."""
    beginnings = ("<", "<|endoftex", "[TOOL_CALLS][", "<|endoftext|>")
    return Kind([chat(begun * (12_000 // len(begun))) for begun in beginnings])


def hidden_bodies() -> Kind:
    """Heads that a body should follow; none does."""
    lengths = ("9" * 19, "0" * 20 + "30", "30", "+30")
    heads = [
        f"{start}{method} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()
        for start in ("", "\r\n")
        for method in ("GET /health", "POST /inference")
        for length in lengths
    ]
    return Kind(heads, connections=50)


def silent_connections() -> Kind:
    return Kind([b"", b"POST /v1/comp"], connections=150)


def client_faults() -> Kind:
    """Each is to be answered with 4xx, and none may condemn a server."""
    model, half = {"model": "embedded"}, "\ud800"
    chunked = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    typed = "Content-Type: application/json\r\n"
    return Kind([
        post("/v1/responses", {**model, "input": ["hello"]}),
        post("/v1/responses", {**model, "input": "x", "previous_response_id": half}),
        completion(**{half: 1}), completion(prompt={"a": 1}), completion(max_tokens="x"),
        post("/v1/chat/completions", {**model, "messages": [None]}),
        post("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1, half: 1}}),
        chunked + b"ZZ\r\n\r\n", chunked + b"2\r\n{}XX0\r\n\r\n",
        post("/v1/completions", b"{", typed + "Authorization: Bearer \xff"),
    ])  # fmt: skip


def unread_bodies() -> Kind:
    """Long ones on paths that read none, or not of this type."""
    long = b"7" * 900_000
    paths = ("/v1/nothing", "/v1/completions", "/generate", "/health")
    return Kind([post(path, long, "Content-Type: text/plain") for path in paths])


def slow_readers() -> Kind:
    """Megabytes of responses a connection, of which each takes 8 KB a second."""
    get = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return Kind([get * 50], connections=10, pause_s=1.0)


KINDS: dict[str, Callable[[], Kind]] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        ordinary_streams, refused_prompts, read_prompts, many_strings, stop_strings,
        special_tokens, hidden_bodies, silent_connections, client_faults, unread_bodies,
        slow_readers,
    )
}  # fmt: skip


async def ask(host: str, port: int, request: bytes, pause_s: float) -> str:
    """The status; empty where the connection ended without one."""
    connection = socket.socket()
    connection.setblocking(False)
    if pause_s:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
    head = b""
    try:
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
        writer.write(request)
        while data := await reader.read(READ_BYTES):
            head = head or data[:12]
            await asyncio.sleep(pause_s)
        writer.close()
    except OSError:  # reset, or refused
        connection.close()
    return head[9:].decode("latin-1")


async def again_and_again(
    place: tuple[str, int], kind: Kind, first: int, answers: Counter[str]
) -> None:
    for number in range(first, sys.maxsize):
        request = kind.requests[number % len(kind.requests)]
        answers[await ask(*place, request, kind.pause_s)] += 1


async def play(url: str, kind: Kind, number: int, answers: Counter[str]) -> None:
    place = urlsplit(url)
    where = place.hostname or "", place.port or 80
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print("begun", flush=True)
    await asyncio.gather(*(
        again_and_again(where, kind, number + i, answers) for i in range(kind.connections)
    ))  # fmt: skip


def main() -> None:
    url, kind, number = sys.argv[1:]
    answers: Counter[str] = Counter()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(play(url, KINDS[kind](), int(number), answers))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
