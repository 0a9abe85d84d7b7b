"""Responses that are generated whether or not a client waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

from api.http.errors import ApiError, internal_error
from api.jobs.store import explain
from api.responses.output import ResponseCall
from api.responses.stored.events import EventLogs
from api.responses.stored.kept import Kept
from api.service import Service
from deferred.errors import StoreError

log = logging.getLogger(__name__)


class Background:
    """Any thread may call it. `executor`: one thread, which reads what was generated and stores
    the responses. `logs`: gets the events of those that were asked for as a stream."""

    def __init__(self, service: Service, kept: Kept, executor: Executor, logs: EventLogs) -> None:
        self._service = service
        self._kept = kept
        self._executor = executor
        self._logs = logs
        self._running: dict[str, ResponseCall] = {}

    def follow(self, call: ResponseCall) -> None:
        """Call it before the requests are submitted. The stored response gets its end."""
        if call.wanted.stream:
            self._logs.open(call.id)
            for told in call.output.opening():
                self._logs.add(call.id, told)
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
            for event in call.read():
                if event is None:
                    yield
                else:
                    self._logs.add(call.id, event)
        except ApiError as error:
            output.fail(error.message)
        except Exception as error:
            output.fail(internal_error(error).message)
        self._running.pop(call.id, None)
        try:
            if not self._kept.end(output.response):
                output.cancel()
        except StoreError as error:
            log.error("a response in the background is lost, it cannot be stored: %s", error)
            output.fail(explain(error).message)
        self._logs.add(call.id, output.last(), last=True)


class _Calling(threading.Event):
    """Calls something whenever it is set."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    def set(self) -> None:
        self._call()
