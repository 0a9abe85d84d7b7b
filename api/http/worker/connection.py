"""A connection: the data that its client has sent, and what is still to be sent to it.

A thread would wait as long as its client takes to send a request, and a thousand slow clients would
hold a thousand threads. So the worker gathers a request first, then it is read like a socket.
gunicorn's parser reads each head, once: what it says of the body decides when a thread takes over.

A client may also read slowly: what the socket does not accept at once is kept. A handler's thread
waits for its client only while much is kept, and the worker's poller sends the rest. A client that
has fallen behind must read at a least rate, as it must send its request. The poller sends the body
of a refusal, since that may be late. Its head leaves at once: a router need then keep no place for
it.
"""

from __future__ import annotations

import math
import re
import select
import socket
import time
from collections.abc import Sequence
from socket import MSG_DONTWAIT
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

from api.http.errors import ApiError, RefusedBody
from web.requests import PACED, bearer_key, is_valid

MOST_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
BYTES_PER_S = 64 * 1024  # a client may take a second longer for each such number of bytes
MOST_UNSENT_BYTES = 256 * 1024  # of each response, by the poller
# what is called of an `Outgoing` besides: by gunicorn, and by the thread that watches clients
USED = ("close", "fileno", "gettimeout", "recv", "settimeout", "shutdown")

# what a head that cannot be read says all the same: enough to answer in the shape of its API
_TARGET = re.compile(rb"(?:\r\n)?([A-Z]{3,20}) (/[\w./-]{0,99})")
_STATUSES = {LimitRequestLine: 414, LimitRequestHeaders: 431, ExpectationFailed: 417}


class Incoming:
    """One request after the other, each of which `next` returns, like gunicorn's parser. Times are
    `time.monotonic()`'s. A body of more than `most_body_bytes` is not gathered, nor that of a
    request without one of `keys`, if there are any; the application checks the key again."""

    def __init__(
        self,
        client: socket.socket,
        cfg: Any,  # gunicorn's, as is the peer's address
        peer: object,
        most_body_bytes: int,
        deadline_s: float,
        keys: Sequence[str] = (),
    ) -> None:
        self.deadline_s = deadline_s  # of the data that is awaited
        self._client = client
        self._cfg = cfg
        self._peer = peer
        self._most_body_bytes = most_body_bytes
        self._keys = keys
        self._received = bytearray()
        self._ended = False  # the client will send no more
        self._forget()

    def _forget(self) -> None:
        self.begun = bool(self._received)
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
        self.request: Any = None  # once the head is complete; from then on the body is received
        self._length: int | None = None  # of the body; None: it comes in chunks
        self._chunk_at = 0  # where the next chunk begins

    def __next__(self) -> Any:
        """The request whose head is complete, for a thread."""
        request = self.request
        if self.whole or not self.admitted or self.refusal is not None:
            request._expected_100_continue = False  # it was sent, or the body is not wanted
        if not self.whole:  # the beginning of the next request is unknown
            request.force_close()
        if self.refusal is not None:
            request.body = RefusedBody(self.refusal)
        return request

    def refuse(self, refusal: ApiError) -> None:
        """The request ends with this error; its body is dropped."""
        self.refusal = refusal
        self.drop_body()

    def drop_body(self) -> None:
        self.whole = False
        self.held_bytes = 0
        self._received.clear()

    def finish_body(self, deadline: float = 0.0) -> bool:
        """Whether another request can follow the present one, of whose body the application may
        have left a part. Called by gunicorn, with a deadline; waits for nothing."""
        try:
            while self.whole and self.request.body.read(PIECE_BYTES):
                pass
        except ParseException:
            return False
        if not self.whole or self.request.body.failed:
            return False
        self._received[:0] = self.request.unreader.take_buffered()  # read ahead
        self._forget()
        return True

    def feed(self, data: bytes) -> None:
        """Adds data that the client sent; no data means that it will send no more."""
        self.begun = True
        self._ended = not data
        self._received += data
        self.deadline_s += len(data) / BYTES_PER_S

    def is_ready(self) -> bool:
        """Whether a thread has something to do: the request is whole, or is not to be gathered."""
        if self.request is None and not self._find_head():
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
        if self.request is None:  # all of it is given to the parser at once
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
        unreader = SocketUnreader(self)
        unreader.unread(head)
        try:
            request = Request(self._cfg, unreader, self._peer)
        except (ParseException, NoMoreData) as error:
            match = _TARGET.match(head)
            target = b" ".join(match.groups() if match else (b"GET", b"/"))
            unreader = SocketUnreader(self)
            unreader.unread(target + b" HTTP/1.1\r\nConnection: close\r\n\r\n")
            request = Request(self._cfg, unreader, self._peer)
            if isinstance(error, NoMoreData):
                error = LimitRequestHeaders(f"the head has more than {MOST_HEAD_BYTES} bytes")
            message = f"the head of the request is malformed: {error}"
            self.refuse(ApiError(_STATUSES.get(type(error), 400), message))
        self.request = request
        self._length = (
            request.body.reader.length if isinstance(request.body.reader, LengthReader) else None
        )
        self.method = request.method.encode()
        self.path = unquote_to_bytes(request.path)
        self.expects = request._expected_100_continue
        self.admitted = not self._keys or any(
            name == "AUTHORIZATION" and is_valid(bearer_key(value).encode(), self._keys)
            for name, value in request.headers
        )
        return True

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


class Outgoing:
    """In the place of a client's socket, for one thread at a time. A client that has fallen behind
    has `patience_s` seconds, and a second more for each `BYTES_PER_S` bytes that it reads."""

    def __init__(self, client: socket.socket, patience_s: float) -> None:
        self.deadline_s = math.inf  # `time.monotonic()`'s
        self._client = client
        self._patience_s = patience_s
        self.rest = bytearray()  # what is left to be sent
        for name in USED:  # a __getattr__ would make every attribute slow
            setattr(self, name, getattr(client, name))
        # set for each response
        self.refuses: bool | None = None  # known with the head, which comes first
        self.bodiless = False

    def setblocking(self, flag: bool) -> None:
        """gunicorn asks for it, twice a request; here, no call depends on it."""

    def sendall(self, data: bytes) -> None:
        """Raises OSError, such as TimeoutError."""
        if not self.post(data):
            self.drain(MOST_UNSENT_BYTES)

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def post(self, data: bytes) -> bool:
        """Like `sendall`, without ever waiting. Whether all was sent."""
        late = self.refuses
        if late is None:
            self.refuses = data[9:12].isdigit() and int(data[9:12]) in PACED
            late = self.refuses and self.bodiless
        if not (self.rest or late):
            try:
                sent = self._client.send(data, MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return True
            data = data[sent:]
        if not self.rest:
            self.deadline_s = time.monotonic() + self._patience_s
        self.rest += data
        if not late:
            self.flush()
        return not self.rest

    def drain(self, most_bytes: int = 0) -> None:
        """Waits until no more than this number of bytes is kept. Raises like `sendall`."""
        poller = select.poll()
        poller.register(self._client, select.POLLOUT)
        while len(self.rest) > most_bytes:
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                raise TimeoutError("the client did not read its response in time")
            self.flush()

    def flush(self) -> None:
        """Sends what the socket accepts without waiting. Raises OSError."""
        while self.rest:
            try:
                sent = self._client.send(self.rest, MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self.rest[:sent]
            self.deadline_s += sent / BYTES_PER_S
