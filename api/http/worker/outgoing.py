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
from socket import MSG_DONTWAIT

from api.http.worker.incoming import BYTES_PER_S
from web.requests import is_paced

# what is called of it besides: by gunicorn, and by the thread that watches clients
USED = ("close", "fileno", "gettimeout", "recv", "settimeout", "shutdown")
MOST_KEPT_BYTES = 256 * 1024  # of each response, by the poller


class Outgoing:
    """In the place of a client's socket, for one thread at a time. A client that has fallen behind
    has `patience_s` seconds, and a second more for each `BYTES_PER_S` bytes that it reads."""

    def __init__(self, client: socket.socket, patience_s: float) -> None:
        self.deadline_s = math.inf  # `time.monotonic()`'s
        self._client = client
        self._patience_s = patience_s
        self._rest = bytearray()
        for name in USED:  # a __getattr__ would make every attribute slow
            setattr(self, name, getattr(client, name))
        self.begin(bodiless=False)

    def begin(self, *, bodiless: bool) -> None:
        """A response, of which the head comes first."""
        self.refuses: bool | None = None  # known with the head
        self._bodiless = bodiless

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self._rest

    def setblocking(self, flag: bool) -> None:
        """gunicorn asks for it, twice a request; here, no call depends on it."""

    def sendall(self, data: bytes) -> None:
        """Raises OSError, such as TimeoutError."""
        self.post(data)
        self.drain(MOST_KEPT_BYTES)

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def post(self, data: bytes) -> bool:
        """Like `sendall`, without ever waiting. Whether all was sent."""
        late = self.refuses
        if late is None:
            self.refuses = data[9:12].isdigit() and is_paced(int(data[9:12]))
            late = self.refuses and self._bodiless
        if not (self._rest or late):
            try:
                sent = self._client.send(data, MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return True
            data = data[sent:]
        if self.whole:
            self.deadline_s = time.monotonic() + self._patience_s
        self._rest += data
        if not late:
            self.flush()
        return self.whole

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
        while self._rest:
            try:
                sent = self._client.send(self._rest, MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self._rest[:sent]
            self.deadline_s += sent / BYTES_PER_S
