"""The events of responses in the background, kept so that a stream of them may be opened later."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

from api.http.errors import ApiError
from api.openai.errors import error_shape
from api.responses.shapes import Event
from api.stream import event

MOST_BYTES = 2**26  # of all responses; the oldest ones' events are dropped first

GONE = (
    "the events of this response are not kept: those of a response with 'background' and 'stream' "
    "are for a while, by the server that generates it; retrieve it without 'stream'"
)


def encoded(told: Event) -> bytes:
    return b"event: " + told["type"].encode() + b"\n" + event(told)


class EventLogs:
    """Any thread may call it. Each response has one writer."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, _Log] = OrderedDict()  # the oldest response first
        self._bytes = 0

    def open(self, response_id: str) -> None:
        with self._lock:
            self._logs[response_id] = _Log()

    def add(self, response_id: str, told: Event, *, last: bool = False) -> None:
        """Without effect for a response whose events were dropped."""
        with self._lock:
            if (log := self._logs.get(response_id)) is None:
                return
            log.events.append(encoded(told))
            log.complete = last
            self._bytes += len(log.events[-1])
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._logs)))
        log.tell()

    def drop(self, response_id: str) -> None:
        with self._lock:
            if response_id in self._logs:
                self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        log = self._logs.pop(response_id)
        self._bytes -= sum(map(len, log.events))
        log.dropped = True
        log.tell()

    def follow(self, response_id: str, first: int) -> Following | None:
        """The stream of a response's events from number `first` on; None if they are not kept. It
        ends the one before, so that no more threads serve streams than there are responses."""
        with self._lock:
            if (log := self._logs.get(response_id)) is None:
                return None
            following = Following(log, first)
            before, log.following = log.following, following
        if before is not None:
            before.leave()
        return following


class _Log:
    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.complete = False
        self.dropped = False
        self.following: Following | None = None

    def tell(self) -> None:
        if self.following is not None:
            self.following.updated.set()


class Following:
    """One stream of the events of a log."""

    def __init__(self, log: _Log, first: int) -> None:
        self.updated = threading.Event()
        self._log = log
        self._next = first
        self._left = False

    def leave(self) -> None:
        """The stream ends, whatever follows."""
        self._left = True
        self.updated.set()

    def read(self) -> Iterator[bytes | None]:
        """None where there is nothing before the next update."""
        log = self._log
        while not self._left:
            if log.dropped:
                yield event(error_shape(ApiError(400, GONE, param="stream")))
                return
            complete = log.complete  # read before the events: none follow
            for told in log.events[self._next :]:
                self._next += 1
                yield told
            if complete:
                return
            yield None
