"""Responses that are generated whether or not a client waits for them, and their events, kept so
that a stream of them may be opened later."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from api.http.errors import ApiError, internal_error, store_refusal
from api.openai.errors import error_shape
from api.responses.output import Event, ResponseCall
from api.responses.stored import StoredResponses
from api.service import Service
from api.stream import event
from deferred.errors import StoreError

log = logging.getLogger(__name__)

MOST_BYTES = 2**26  # of all responses; the oldest ones' events are dropped first

GONE = (
    "the events of this response are not kept: those of a response with 'background' and 'stream' "
    "are for a while, by the server that generates it; retrieve it without 'stream'"
)


class Background:
    """Any thread may call it. `executor`: one thread, which reads what was generated and stores
    the responses. `logs`: gets the events of those that were asked for as a stream."""

    def __init__(
        self, service: Service, stored: StoredResponses, executor: Executor, logs: EventLogs
    ) -> None:
        self._service = service
        self._stored = stored
        self._executor = executor
        self._logs = logs
        self._running: dict[str, ResponseCall] = {}

    def follow(self, call: ResponseCall) -> None:
        """Call it before the requests are submitted. The stored response gets its end."""
        if call.wanted.stream:
            self._logs.open(call.id)
            for new in call.output.opening():
                self._logs.add(call.id, new)
        reading = self._read(call)
        updated = _Calling(lambda: self._executor.submit(next, reading, None))
        for inference in call.generation.inferences:
            inference.updated = updated
        self._running[call.id] = call

    def has_begun(self, response_id: str) -> bool:
        """True for one that another server generates."""
        call = self._running.get(response_id)
        if call is None:
            return True
        return any(one.admitted_s is not None for one in call.generation.inferences)

    def cancel(self, response_id: str) -> None:
        """Without effect on one that has ended."""
        if (call := self._running.pop(response_id, None)) is not None:
            self._service.cancel(*call.generation.inferences)

    def _read(self, call: ResponseCall) -> Iterator[None]:
        """Continues at each update."""
        output = call.output
        try:
            for new in call.read():
                if new is None:
                    yield
                else:
                    self._logs.add(call.id, new)
        except ApiError as error:
            output.fail(error.message)
        except Exception as error:
            output.fail(internal_error(error).message)
        self._running.pop(call.id, None)
        try:
            if not self._stored.end(output.response):
                output.cancel()
        except StoreError as error:
            log.error("a response in the background is lost, it cannot be stored: %s", error)
            output.fail(store_refusal(error).message)
        self._logs.add(call.id, output.last(), last=True)


class _Calling(threading.Event):
    """Calls something whenever it is set."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    def set(self) -> None:
        self._call()


def encoded(new: Event) -> bytes:
    return f"event: {new['type']}\n".encode() + event(new)


class EventLogs:
    """Any thread may call it. Each response has one writer."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.RLock()
        self._logs: OrderedDict[str, _Log] = OrderedDict()  # the oldest response first
        self._bytes = 0

    def open(self, response_id: str) -> None:
        with self._lock:
            self._logs[response_id] = _Log()

    def add(self, response_id: str, new: Event, *, last: bool = False) -> None:
        """Without effect for a response whose events were dropped."""
        with self._lock:
            if (log := self._logs.get(response_id)) is None:
                return
            log.events.append(encoded(new))
            log.complete = last
            self._bytes += len(log.events[-1])
            while self._bytes > self._most_bytes:
                self.drop(next(iter(self._logs)))
        log.tell()

    def drop(self, response_id: str) -> None:
        with self._lock:
            if (log := self._logs.pop(response_id, None)) is not None:
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


@dataclass(slots=True)
class _Log:
    events: list[bytes] = field(default_factory=list)
    complete: bool = False
    dropped: bool = False
    following: Following | None = None

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
            for new in log.events[self._next :]:
                self._next += 1
                yield new
            if complete:
                return
            yield None
