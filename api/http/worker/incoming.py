"""The data that a connection has sent: gathered without a thread, then read like a socket.

A thread would wait as long as its client takes to send a request, and a thousand slow clients would
hold a thousand threads. So the worker gathers a request first. gunicorn's parser reads each head,
once: what it says of the body decides when a thread takes over.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from gunicorn.http.body import LengthReader  # type: ignore[import-untyped]
from gunicorn.http.errors import (  # type: ignore[import-untyped]
    ExpectationFailed,
    LimitRequestHeaders,
    LimitRequestLine,
    NoMoreData,
    ParseException,
)
from gunicorn.http.message import Request  # type: ignore[import-untyped]
from gunicorn.http.unreader import SocketUnreader  # type: ignore[import-untyped]

from api.http.errors import ApiError

MOST_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
BYTES_PER_S = 64 * 1024  # a client may take a second longer for each such number of bytes

# what a head that cannot be read says all the same: enough to answer in the shape of its API
_TARGET = re.compile(rb"(?:\r\n)?([A-Z]{3,20}) (/[\w./-]{0,99})")
_STATUSES = {LimitRequestLine: 414, LimitRequestHeaders: 431, ExpectationFailed: 417}


class Incoming:
    """One request after the other, each of which `next` returns, like gunicorn's parser. Times are
    `time.monotonic()`'s. A body of more than `most_body_bytes` is not gathered, nor that of a
    request whose headers are not admitted."""

    def __init__(
        self,
        client: socket.socket,
        cfg: Any,  # gunicorn's, as is the peer's address
        peer: object,
        most_body_bytes: int,
        deadline_s: float,
        admits: Callable[[list[tuple[str, str]]], bool] = lambda headers: True,
    ) -> None:
        self.deadline_s = deadline_s  # of the data that is awaited
        self._client = client
        self._cfg = cfg
        self._peer = peer
        self._most_body_bytes = most_body_bytes
        self._admits = admits
        self._received = bytearray()
        self._ended = False  # the client will send no more
        self._forget()

    def _forget(self) -> None:
        self.method = b""  # known with the head, as are the next three
        self.path = b""  # decoded, without the query
        self.admitted = True
        self.gathers_body = False
        self.held_bytes = 0  # of its body
        self.missing_bytes = 0  # of a body that is gathered, as far as its length is known
        self.refusal: ApiError | None = None
        self.whole = False  # head and body are complete
        self.expects = False  # the client waits for "100 Continue" before it sends the body
        self._searched = 0  # bytes in which no head ends
        self._request: Any = None  # once the head is complete; from then on the body is received
        self._length: int | None = None  # of the body; None: it comes in chunks
        self._chunk_at = 0  # where the next chunk begins

    @property
    def begun(self) -> bool:
        return bool(self._received) or self.has_head

    @property
    def has_head(self) -> bool:
        return self._request is not None

    def __next__(self) -> Any:
        """The request whose head is complete, for a thread."""
        return self._request

    def refuse(self, refusal: ApiError) -> None:
        """The request ends with this error; its body is dropped."""
        self.refusal = refusal
        self.drop_body()

    def drop_body(self) -> None:
        self.whole = False
        self.held_bytes = 0
        self._received.clear()

    def finish(self) -> bool:
        """Whether another request can follow the present one, of whose body the application may
        have left a part. Waits for nothing."""
        try:
            while self.whole and self._request.body.read(PIECE_BYTES):
                pass
        except ParseException:
            return False
        if not self.whole or self._request.body.failed:
            return False
        self._received[:0] = self._request.unreader.take_buffered()  # read ahead
        self._forget()
        return True

    def feed(self, data: bytes) -> None:
        """Adds data that the client sent; no data means that it will send no more."""
        self._ended = not data
        self._received += data
        self.deadline_s += len(data) / BYTES_PER_S

    def is_ready(self) -> bool:
        """Whether a thread has something to do: the request is whole, or is not to be gathered."""
        if not self.has_head and not self._find_head():
            return False
        if self.refusal is not None:
            return True
        here = len(self._received)
        if self._length is None:
            self.held_bytes = here
            self.whole = self._has_last_chunk()
            too_large = here > self._most_body_bytes
        else:
            self.held_bytes = min(here, self._length)
            self.whole = here >= self._length
            too_large = self._length > self._most_body_bytes
        gathers = self.admitted and not too_large
        self.gathers_body = gathers and self._length != 0
        self.missing_bytes = max(0, (self._length or 0) - here) if gathers else 0
        return self.whole or not gathers or self._ended

    def recv(self, size: int) -> bytes:
        """Like a socket's: first the gathered data, then what arrives until the deadline. Raises
        TimeoutError."""
        if not self.has_head:  # all of it is given to the parser at once
            return b""
        if not self._received and not self._ended and self.refusal is None:
            return self._wait(size)
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def _wait(self, size: int) -> bytes:
        poller = select.poll()
        poller.register(self._client, select.POLLIN)
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise TimeoutError("the rest of the request did not arrive in time")
        data = self._client.recv(size)
        self.deadline_s += len(data) / BYTES_PER_S
        return data

    def _find_head(self) -> bool:
        """Also one that will not become a head."""
        # an empty line may precede a request (RFC 9112, 2.2)
        first = 2 if self._received.startswith(b"\r\n") else 0
        end = self._received.find(b"\r\n\r\n", max(first, self._searched - 3))
        self._searched = len(self._received)
        if end < 0:
            bare_newline = self._received.count(b"\n") > self._received.count(b"\r\n")
            if not bare_newline and len(self._received) <= MOST_HEAD_BYTES:
                return False
            end = len(self._received)
        head = bytes(self._received[: end + 4])
        del self._received[: end + 4]
        try:
            request = self._parsed(head)
        except (ParseException, NoMoreData) as error:
            found = _TARGET.match(head)
            method, target = found.groups() if found else (b"GET", b"/")
            request = self._parsed(
                b"%b %b HTTP/1.1\r\nConnection: close\r\n\r\n" % (method, target)
            )
            if isinstance(error, NoMoreData):
                error = LimitRequestHeaders(f"the head has more than {MOST_HEAD_BYTES} bytes")
            told = f"the head of the request is malformed: {error}"
            self.refuse(ApiError(_STATUSES.get(type(error), 400), told))
        self._request = request
        self._length = (
            request.body.reader.length if isinstance(request.body.reader, LengthReader) else None
        )
        self.method = request.method.encode()
        self.path = unquote_to_bytes(request.path)
        self.expects = request._expected_100_continue
        self.admitted = self._admits(request.headers)
        return True

    def _parsed(self, head: bytes) -> Any:
        """Raises gunicorn's errors."""
        unreader = SocketUnreader(self)
        unreader.unread(head)
        return Request(self._cfg, unreader, self._peer)

    def _has_last_chunk(self) -> bool:
        """Also if something else is there, which gunicorn refuses."""
        while (end := self._received.find(b"\r\n", self._chunk_at)) >= 0:
            try:
                size = int(self._received[self._chunk_at : end].partition(b";")[0], 16)
            except ValueError:
                return True
            if size <= 0:
                return size < 0 or self._received.find(b"\r\n\r\n", end) >= 0
            self._chunk_at = end + 2 + size + 2
        return False
