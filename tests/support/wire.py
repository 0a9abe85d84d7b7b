"""HTTP requests as bytes, for clients that stall, leave or send too much."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.support.process import Server, connected


def head(path: str, length: int, *lines: str) -> bytes:
    """The head of a POST with a JSON body of `length` bytes. `lines`: further header lines."""
    fixed = [f"POST {path} HTTP/1.1", "Host: [::]", "Content-Type: application/json"]
    return "\r\n".join([*fixed, f"Content-Length: {length}", *lines, "", ""]).encode()


def post(path: str, *, padding: int = 0, **fields: Any) -> tuple[bytes, bytes]:
    """Head and body; `padding`: spaces at its end."""
    body = json.dumps(fields).encode() + b" " * padding
    return head(path, len(body)), body


def send(server: Server, path: str, **fields: Any) -> socket.socket:
    """The client of a request whose response is not read yet."""
    client = connected(server)
    client.sendall(b"".join(post(path, **fields)))
    return client


def all_of(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    received = b""
    while piece := client.recv(65536):
        received += piece
    return received
