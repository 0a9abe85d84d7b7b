"""One thread that writes the events of all streams, so that the handlers' threads sleep until
their stream ends or its client falls behind.

If each thread wrote its own stream, every iteration would wake hundreds, which would compete with
the engine for the interpreter's lock.

A silent stream gets comments, which clients skip, so that no proxy closes it.
<https://html.spec.whatwg.org/multipage/server-sent-events.html#authoring-notes>
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Protocol

from api.http.worker.connection import Outgoing

COMMENT = b": waiting\n\n"


class Updated(Protocol):
    """What events are made of: a request, for example. `updated` is set whenever there is more."""

    updated: threading.Event


class Writer:
    """`serve` may be called from any thread. A stream in which nothing is sent for `heartbeat_s`
    seconds gets a comment."""

    def __init__(self, heartbeat_s: float = 15.0) -> None:
        self._heartbeat_s = heartbeat_s
        self._updated: SimpleQueue[_WrittenStream] = SimpleQueue()
        threading.Thread(target=self._run, name="writer", daemon=True).start()

    def serve(
        self,
        sources: Sequence[Updated],
        client: Outgoing,
        events: Iterator[bytes | None],
        *,
        chunked: bool,
    ) -> Iterator[bytes]:
        """The body of gunicorn's answer: empty, since `events` go to the client, in chunks if
        `chunked`. None among them means that nothing is to be sent before the next update
        of a source. Raises the errors of `events` and the socket."""
        stream = _WrittenStream(client, events, chunked, self._updated)
        for source in sources:
            source.updated = stream
        yield b""  # gunicorn sends the head
        while not stream.ended:
            stream.returned.clear()
            stream.lent = True
            stream.set()  # there may have been an update before
            # it returns when it has ended or failed, or its client is slower than its events
            while not stream.returned.wait(stream.sent_s + self._heartbeat_s - time.monotonic()):
                if time.monotonic() >= stream.sent_s + self._heartbeat_s:
                    stream.sent_s = time.monotonic()
                    stream.comment_due = True
                    stream.set()
            if not stream.ended:
                client.drain()  # only this thread waits for this client
            if stream.error is not None:
                raise stream.error

    def _run(self) -> None:
        while True:
            stream = self._updated.get()
            if stream.lent:
                stream.write()


class _WrittenStream(threading.Event):
    """The `updated` of its requests: setting it notifies the writer."""

    def __init__(
        self,
        client: Outgoing,
        events: Iterator[bytes | None],
        chunked: bool,
        updated: SimpleQueue[_WrittenStream],
    ) -> None:
        super().__init__()
        self.ended = False
        self.error: BaseException | None = None
        self.lent = False  # to the writer, which then has exclusive use of the stream
        self._client = client
        self._events = events
        self._chunked = chunked
        self._updated = updated
        self.sent_s = time.monotonic()  # when there last was something to send
        self.comment_due = False
        self.returned = threading.Event()

    def set(self) -> None:
        self._updated.put(self)

    def write(self) -> None:
        """Sends the present events, as far as the socket accepts them without waiting."""
        parts = []
        try:
            for data in self._events:
                if data is None:
                    break
                parts.append(data)
            else:
                self.ended = True
        except BaseException as error:  # the handler's to answer for; the writer serves the others
            self.error = error
        if self.comment_due and not (parts or self.ended):
            parts.append(COMMENT)
        self.comment_due, whole = False, True
        if parts:
            self.sent_s = time.monotonic()
            try:
                data = b"".join(parts)
                whole = self._client.post(
                    b"%X\r\n%b\r\n" % (len(data), data) if self._chunked else data
                )
            except BaseException as error:
                self.error = self.error or error
        if self.ended or self.error is not None or not whole:
            self.lent = False
            self.returned.set()
