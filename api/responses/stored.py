"""The stored responses: what clients may continue, read and cancel; those that are generated in the
background, whether or not a client waits for them; and their events, kept so that a stream of them
may be opened later."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from pydantic_core import from_json, to_json

from api.http.errors import ApiError, internal_error, store_refusal
from api.openai.errors import error_shape
from api.responses.items import Json
from api.responses.output import Event, GeneratedResponse, ResponseCall, ResponseFault
from api.service import Service
from api.stream import event
from deferred.entities import StoredResponse
from deferred.errors import ConversationTooLongError, NotFoundError, StoreError
from deferred.jobs import Jobs

log = logging.getLogger(__name__)

DAY_S = 86_400
MOST_CONVERSATION_BYTES = 16 * 2**20
MOST_BYTES = 2**26  # of the events of all responses; those of the oldest are dropped first
LOST_AFTER_S = 60.0  # after the longest time that a request may take
LOST = "the server ended before the response was complete"
GONE = (
    "the events of this response are not kept: those of a response with 'background' and 'stream' "
    "are for a while, by the server that generates it; retrieve it without 'stream'"
)


class StoredResponses:
    """Raises StoreError, where nothing else is said. Any thread may call it. `executor`: one
    thread, which reads what is generated in the background and stores it. `logs`: gets the events
    of responses in the background that were asked for as a stream."""

    def __init__(self, service: Service, jobs: Jobs, executor: Executor, logs: EventLogs) -> None:
        self._service = service
        self._jobs = jobs
        self._executor = executor
        self._logs = logs
        self._running: dict[str, ResponseCall] = {}

    def require_room(self, owner: str, own: list[Json]) -> None:
        """Raises ApiError if no response with this input can be stored."""
        try:
            store, most_bytes = self._jobs.store.responses, self._service.config.max_stored_bytes
            store.require_room(owner, len(to_json(own)), most_bytes)
        except StoreError as error:
            refused = store_refusal(error)
            if refused.status == 503:
                refused.message += '; a response with "store": false needs none'
            raise refused from error

    def earlier(self, owner: str, response_id: str) -> tuple[int, list[Json]]:
        """The number of a response, and the items of its conversation. Raises ApiError."""
        field, now_s = "previous_response_id", time.time()
        try:
            responses = self._jobs.store.responses.conversation(
                owner, response_id, now_s, most_bytes=MOST_CONVERSATION_BYTES
            )
        except NotFoundError as error:
            raise ApiError(
                404, str(error), param=field, code="previous_response_not_found"
            ) from error
        except ConversationTooLongError as error:
            raise ApiError(400, str(error), param=field) from error
        except StoreError as error:
            raise store_refusal(error) from error
        newest = responses[-1]
        if newest.lost_at is not None and newest.lost_at > now_s:
            raise ApiError(400, f"the response {response_id} is not complete yet", param=field)
        items: list[Json] = []  # not as models: there may be thousands
        for response in responses:
            items += from_json(response.input)
            items += from_json(response.body)["output"]
        return newest.number, items

    def create(self, call: ResponseCall) -> None:
        """A response in the background has not ended yet."""
        now_s, response = time.time(), call.output.response
        lost_at = None
        if response.status == "queued":
            lost_at = now_s + self._service.config.request_timeout + LOST_AFTER_S
        self._jobs.store.responses.create(
            StoredResponse(
                id=response.id,
                owner=call.owner,
                previous=call.previous,
                created_at=now_s,
                expires_at=now_s + self._service.config.response_retention_days * DAY_S,
                lost_at=lost_at,
                input=to_json(call.own),
                body=to_json(response),
            )
        )

    def end(self, response: GeneratedResponse) -> bool:
        """Of one in the background; False if it has ended already, or is gone."""
        return self._jobs.store.responses.end(response.id, to_json(response))

    def read(self, owner: str, response_id: str) -> tuple[bool, GeneratedResponse]:
        """Whether it is being generated, and the response; of one that is, as it began, with its
        present status."""
        now_s = time.time()
        stored = self._jobs.store.responses.get(owner, response_id, now_s)
        response = GeneratedResponse.model_validate_json(stored.body)
        if stored.lost_at is None:
            return False, response
        if stored.lost_at > now_s:
            call = self._running.get(response_id)  # None: another server generates it
            if call is None or any(one.admitted_s is not None for one in call.inferences):
                response.status = "in_progress"
            return True, response
        response.status = "failed"
        response.error = ResponseFault(code="server_error", message=LOST)
        return False, response

    # --- in the background ---

    def follow(self, call: ResponseCall) -> None:
        """Call it before the requests are submitted. The stored response gets its end."""
        if call.wanted.stream:
            self._logs.open(call.id)
            for new in call.output.opening():
                self._logs.add(call.id, new)
        reading = self._read(call)
        updated = _Calling(lambda: self._executor.submit(next, reading, None))
        for inference in call.inferences:
            inference.updated = updated
        self._running[call.id] = call

    def cancel(self, response_id: str) -> None:
        """Without effect on one that has ended."""
        if (call := self._running.pop(response_id, None)) is not None:
            self._service.cancel(*call.inferences)

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
            if not self.end(output.response):
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
