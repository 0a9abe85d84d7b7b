"""`POST /v1/responses`: a response whole, streamed or in the background; and the stream of one in
the background, opened again."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from flask import Response, g, jsonify, request

from api.follow import awaited
from api.http.errors import ApiError
from api.http.hooks import presented_owner
from api.jobs.store import explain
from api.openai.answers import error_shape
from api.openai.generation import Generations
from api.responses.call import ResponseCall
from api.responses.making import Maker
from api.responses.stored.background import Background
from api.responses.stored.events import GONE, EventLogs, encoded
from api.responses.stored.kept import Kept
from api.responses.stored.lines import response_line
from api.service import Service
from api.stream import event_stream, stream_of
from deferred.errors import StoreError
from deferred.jobs import Jobs

log = logging.getLogger(__name__)

MARK_HEADER = "X-Upstream-Mark"  # of a router, which finds this server by it in the ids
MARK = re.compile("[0-9a-f]{8}")


class ResponseCalls:
    def __init__(self, service: Service, generations: Generations, jobs: Jobs) -> None:
        self._service = service
        self._executor = ThreadPoolExecutor(1, "responses")
        self.kept = Kept(jobs, service.config)
        self._maker = Maker(generations, self.kept)
        self.line = partial(response_line, self._maker, self.kept)
        self._logs = EventLogs()
        self._background = Background(service, self.kept, self._executor, self._logs)
        self.has_begun = self._background.has_begun

    def settle(self, timeout_s: float) -> None:
        """Returns when the responses that were generated in the background are stored."""
        last = self._executor.submit(int)  # in a queue that one thread works off
        if wait([last], timeout_s).not_done:
            log.error("responses are lost, they could not be stored within %g s", timeout_s)

    def create(self, data: dict[str, Any], arrival_s: float) -> Response:
        mark = request.headers.get(MARK_HEADER, "")
        if not MARK.fullmatch(mark):
            mark = ""
        call = self._maker.make(presented_owner(), data, arrival_s, mark=mark)
        if call.wanted.background:
            return self._in_background(call)
        self._service.submit(*call.generation.inferences, asked=call.wanted)
        return self._streamed(call) if call.wanted.stream else self._whole(call)

    def input_tokens(self, data: dict[str, Any], arrival_s: float) -> int:
        """Of a call that is not made. Raises ApiError."""
        asked = {**data, "store": False, "background": False}
        return self._maker.make(presented_owner(), asked, arrival_s).generation.prompt_tokens

    def resume(self, response_id: str, first: int) -> Response:
        """The events of a response in the background from number `first` on. Raises ApiError."""
        following = self._logs.follow(response_id, first)
        if following is None:
            raise ApiError(400, GONE, param="stream")
        client = request.environ.get("gunicorn.socket")
        unwatch = self._service.departures.watch(client, following.leave)
        return stream_of(self._service, [following], following.read(), unwatch)

    def cancel(self, response_id: str) -> None:
        """One in the background; without effect if it has ended."""
        self._background.cancel(response_id)

    def delete(self, response_id: str) -> None:
        self.kept.delete(presented_owner(), response_id)
        self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        self._background.cancel(response_id)
        self._logs.drop(response_id)

    def _whole(self, call: ResponseCall) -> Response:
        inferences = call.generation.inferences
        unwatch = self._service.watch(request.environ.get("gunicorn.socket"), *inferences)
        try:
            for _ in awaited(call.read(), inferences[0].updated):
                pass
        except ApiError:
            self._service.cancel(*inferences)
            raise
        finally:
            unwatch()
        if call.stores:
            self.kept.create(call)
        return jsonify(call.output.response)

    def _streamed(self, call: ResponseCall) -> Response:
        output, first = call.output, call.generation.inferences[0]

        def events() -> Iterator[bytes | None]:
            for told in output.opening():
                yield encoded(told)
            try:
                for found in call.read():
                    yield None if found is None else encoded(found)
                if call.stores:  # not in this thread, which may serve all streams
                    stored = self._executor.submit(self.kept.create, call)
                    stored.add_done_callback(lambda _: first.updated.set())
                    while not stored.done():
                        yield None
                    stored.result()
            except ApiError as error:
                output.fail(error.message)
            except StoreError as error:
                output.fail(explain(error).message)
            yield encoded(output.last())

        return event_stream(self._service, call.generation.inferences, events(), error_shape)

    def _in_background(self, call: ResponseCall) -> Response:
        inferences = call.generation.inferences
        queued = jsonify(call.output.response)  # as it is now
        self.kept.create(call)
        self._background.follow(call)
        try:
            self._service.submit(*inferences, asked=call.wanted)
        except ApiError:
            self._forget(call.id)
            self.kept.delete(call.owner, call.id)
            raise
        g.pop("inferences", None)  # they continue: the log must not count them as cancelled
        return self.resume(call.id, 0) if call.wanted.stream else queued
