"""A response to a client that may read slowly: what the socket does not accept at once is kept.

A handler's thread waits for its client only while much is kept, and the worker's poller sends the
rest. A client that has fallen behind must read at a least rate, as it must send its request. The
poller sends the body of a refusal, since that may be late. Its head leaves at once: a router need
then keep no place for it.
"""

from __future__ import annotations

import math
import select
import socket
import time
from typing import Any

from api.http.worker.incoming import BYTES_PER_S
from web.pace import is_paced

MOST_KEPT_BYTES = 256 * 1024  # of each response, by the poller


class Outgoing:
    """In the place of a client's socket, for one thread at a time. A client that has fallen behind
    has `patience_s` seconds, and a second more for each `BYTES_PER_S` bytes that it reads."""

    def __init__(self, client: socket.socket, patience_s: float) -> None:
        self.deadline_s = math.inf  # `time.monotonic()`'s
        self._client = client
        self._patience_s = patience_s
        self._rest = bytearray()
        self.begin(bodiless=False)

    def begin(self, *, bodiless: bool) -> None:
        """A response, of which the head comes first."""
        self.refuses: bool | None = None  # known with the head
        self._bodiless = bodiless

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self._rest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        """Raises OSError, such as TimeoutError."""
        self.post(data)
        self.drain(MOST_KEPT_BYTES)

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def post(self, data: bytes) -> None:
        """Like `sendall`, without ever waiting."""
        late = self.refuses
        if late is None:
            self.refuses = data[9:12].isdigit() and is_paced(int(data[9:12]))
            late = self.refuses and self._bodiless
        if not (self._rest or late):
            data = data[self._sent(data) :]
            if not data:
                return
        if self.whole:
            self.deadline_s = time.monotonic() + self._patience_s
        self._rest += data
        if not late:
            self.flush()

    def drain(self, most_bytes: int = 0) -> None:
        """Waits until no more than this number of bytes is kept. Raises like `sendall`."""
        poller = select.poll()
        poller.register(self._client, select.POLLOUT)
        while len(self._rest) > most_bytes:
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                raise TimeoutError("the client did not read its response in time")
            self.flush()

    def flush(self) -> None:
        """Sends what the socket accepts without waiting. Raises OSError."""
        while self._rest and (sent := self._sent(self._rest)):
            del self._rest[:sent]
            self.deadline_s += sent / BYTES_PER_S

    def _sent(self, data: bytes | bytearray) -> int:
        """Bytes that the socket took."""
        try:  # of each token: contextlib.suppress takes longer
            return self._client.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
