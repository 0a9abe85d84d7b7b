"""A response that never waits for its client: what the socket does not accept at once is kept, and
the worker's poller sends it."""

from __future__ import annotations

import contextlib
import socket
from typing import Any


class Outgoing:
    """In the place of a client's socket, for a response that is small enough to be held."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._rest = bytearray()

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self._rest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        self._rest += data
        self.flush()

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def flush(self) -> None:
        """Sends what the socket accepts without waiting. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while self._rest:
                del self._rest[: self._client.send(self._rest, socket.MSG_DONTWAIT)]
