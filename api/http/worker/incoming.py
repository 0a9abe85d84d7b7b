"""The data that a connection has sent: gathered without a thread, then read like a socket.

A thread would wait as long as its client takes to send a request, and a thousand slow clients would
hold a thousand threads. So the worker gathers a request first. This code only decides when a thread
takes over; gunicorn's parser, which reads the same bytes, interprets the request.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Sequence
from urllib.parse import unquote_to_bytes

from gunicorn.http.errors import LimitRequestHeaders  # type: ignore[import-untyped]

from api.http.errors import ApiError
from web.keys import is_valid

MOST_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
BYTES_PER_S = 64 * 1024  # a client may take a second longer for each such number of bytes

_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding[ \t]*:[^\r\n]*chunked", re.IGNORECASE)
_ORIGIN = re.compile(rb"[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)  # of an absolute target
_BEARER = re.compile(rb"\r\nauthorization:[ \t]*bearer +([^\r\n]*)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect[ \t]*:[ \t]*100-continue", re.IGNORECASE)


def _path(target: bytes) -> bytes:
    """As the application's routes see it."""
    path = target.partition(b"#")[0].partition(b"?")[0]
    if (origin := _ORIGIN.match(path)) is not None:
        path = path[origin.end() :] or b"/"
    return unquote_to_bytes(path)


def presents_key(head: bytes, keys: Sequence[str]) -> bool:
    """Whether a request's head has a valid key, so that its body is gathered; the application
    checks the key again."""
    given = _BEARER.search(head)
    return given is not None and is_valid(given[1].strip(), keys)


class Incoming:
    """One request after the other. Times are `time.monotonic()`'s. A body of more than
    `most_body_bytes` is not gathered, nor that of a request whose head is not admitted."""

    def __init__(
        self,
        client: socket.socket,
        most_body_bytes: int,
        deadline_s: float,
        admits: Callable[[bytes], bool] = lambda head: True,
    ) -> None:
        self.deadline_s = deadline_s  # of the data that is awaited
        self._client = client
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
        self._body_at: int | None = None  # where it begins, once the head is complete
        self._length: int | None = None  # of the body; None: it comes in chunks
        self._chunk_at = 0  # where the next chunk begins

    @property
    def begun(self) -> bool:
        return bool(self._received)

    @property
    def has_head(self) -> bool:
        return self._body_at is not None

    def refuse(self, refusal: ApiError) -> None:
        """The request ends with this error; its body is dropped."""
        self.refusal = refusal
        self.whole = False
        self.held_bytes = 0
        if self._body_at is not None:
            del self._received[self._body_at :]

    def next(self, read_ahead: bytes) -> None:
        """For the next request on the connection, of which the parser may have read a part."""
        self._received[:0] = read_ahead
        self._forget()

    def feed(self, data: bytes) -> None:
        """Adds data that the client sent; no data means that it will send no more."""
        self._ended = not data
        self._received += data
        self.deadline_s += len(data) / BYTES_PER_S

    def is_ready(self) -> bool:
        """Whether a thread has something to do: the request is whole, or is not to be gathered."""
        if self._body_at is None and not self._find_head():
            bare_newline = self._received.count(b"\n") > self._received.count(b"\r\n")
            return self._ended or bare_newline or len(self._received) > MOST_HEAD_BYTES
        assert self._body_at is not None
        here = len(self._received) - self._body_at
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
        TimeoutError, and gunicorn's error for a head that is too long."""
        if not self._received and not self._ended and self.refusal is None:
            return self._wait(size)
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def _wait(self, size: int) -> bytes:
        if not self.has_head:
            raise LimitRequestHeaders(
                f"the head has bare newlines or more than {MOST_HEAD_BYTES} bytes"
            )
        poller = select.poll()
        poller.register(self._client, select.POLLIN)
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise TimeoutError("the rest of the request did not arrive in time")
        data = self._client.recv(size)
        self.deadline_s += len(data) / BYTES_PER_S
        return data

    def _find_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n", max(0, self._searched - 3))
        self._searched = len(self._received)
        if end < 0:
            return False
        self._body_at = self._chunk_at = body_at = end + 4
        words = bytes(self._received[: self._received.find(b"\r\n")]).split(b" ")
        self.method = words[0]
        self.path = _path(words[1]) if len(words) > 1 else b""
        if _CHUNKED.search(self._received, 0, body_at):
            self._length = None
        else:
            length = _LENGTH.search(self._received, 0, body_at)
            self._length = int(length[1]) if length else 0
        self.expects = _EXPECTS.search(self._received, 0, body_at) is not None
        self.admitted = self._admits(bytes(self._received[:body_at]))
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
