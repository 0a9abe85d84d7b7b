"""`POST /v1/responses`: a response whole, streamed, in the background or as a line of a batch; and
the stream of one in the background, opened again."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from flask import Response, g, jsonify, request

from api.http.body import of_schema
from api.http.errors import ApiError, show
from api.http.hooks import presented_owner
from api.jobs.lines import Line
from api.jobs.store import explain
from api.openai.errors import error_shape
from api.openai.generation import Generations
from api.responses.generating import begun, generation_of
from api.responses.items import as_json, messages_of, new_id, stored_items
from api.responses.output import Output, ResponseCall
from api.responses.schemas import ResponseRequest, name_in, refuse_by_name
from api.responses.shapes import InputItem, OutputItem
from api.responses.stored.background import Background
from api.responses.stored.events import GONE, EventLogs, encoded
from api.responses.stored.kept import Kept
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
        self._generations = generations
        self._logs = EventLogs()
        self.background = Background(service, self.kept, self._executor, self._logs)

    def settle(self, timeout_s: float) -> None:
        """Returns when the responses that were generated in the background are stored."""
        last = self._executor.submit(int)  # in a queue that one thread works off
        if wait([last], timeout_s).not_done:
            log.error("responses are lost, they could not be stored within %g s", timeout_s)

    def create(self, data: dict[str, Any], arrival_s: float) -> Response:
        mark = request.headers.get(MARK_HEADER, "")
        if not MARK.fullmatch(mark):
            mark = ""
        call = self._make(presented_owner(), data, arrival_s, mark=mark)
        if call.wanted.background:
            return self._in_background(call)
        self._service.submit(*call.generation.inferences, asked=call.wanted)
        return self._streamed(call) if call.wanted.stream else self._whole(call)

    def input_tokens(self, data: dict[str, Any], arrival_s: float) -> int:
        """Of a call that is not made. Raises ApiError."""
        asked = {**data, "store": False, "background": False}
        return self._make(presented_owner(), asked, arrival_s).generation.prompt_tokens

    def resume(self, response_id: str, first: int) -> Response:
        """The events of a response in the background from number `first` on. Raises ApiError."""
        following = self._logs.follow(response_id, first)
        if following is None:
            raise ApiError(400, GONE, param="stream")
        client = request.environ.get("gunicorn.socket")
        unwatch = self._service.departures.watch(client, following.leave)
        return stream_of(self._service, [following], following.read(), unwatch)

    def line(self, owner: str, body: dict[str, Any], arrival_s: float) -> Line:
        """As a line of a batch: the response is in the batch's output, so it is kept for later
        calls only where the line asks for it. Raises ApiError."""
        if body.get("background"):
            raise ApiError(
                400, "field 'background' must be false or left out in a batch", param="background"
            )
        call = self._make(owner, body, arrival_s, stores=False)

        def answers() -> Iterator[dict[str, Any] | None]:
            for event in call.read():
                if event is None:
                    yield None
            if call.stores:
                try:
                    self.kept.create(call)
                except StoreError as error:
                    raise explain(error) from error
            yield dict(call.output.response)

        return Line(self._service, call.generation, answers())

    def delete(self, response_id: str) -> None:
        self.kept.delete(presented_owner(), response_id)
        self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        self.background.cancel(response_id)
        self._logs.drop(response_id)

    def _whole(self, call: ResponseCall) -> Response:
        self._service.wait(call.read(), *call.generation.inferences)
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
        self.background.follow(call)
        try:
            self._service.submit(*inferences, asked=call.wanted)
        except ApiError:
            self._forget(call.id)
            self.kept.delete(call.owner, call.id)
            raise
        g.pop("inferences", None)  # they continue: the log must not count them as cancelled
        return self.resume(call.id, 0) if call.wanted.stream else queued

    def _make(
        self,
        owner: str,
        data: dict[str, Any],
        arrival_s: float,
        *,
        mark: str = "",
        stores: bool = True,
    ) -> ResponseCall:
        """`mark`: a part of the response's id. `stores`: the response is kept unless the call says
        whether it is. Raises ApiError."""
        refuse_by_name(data)
        wanted = of_schema(data, ResponseRequest)
        for kind in wanted.left_out:
            self._generations.note(f"tools of type {show(kind)}", "left out of a response")
        if wanted.store is not None:
            stores = wanted.store
        if wanted.background and not stores:
            raise ApiError(400, "field 'background' needs 'store' not to be false", param="store")
        previous = None
        items: list[InputItem | OutputItem] = []
        if wanted.previous_response_id is not None:
            previous, items = self.kept.earlier(owner, wanted.previous_response_id)
        own = stored_items(wanted.input)
        generation = generation_of(
            wanted, messages_of([*items, *own]), self._generations, arrival_s
        )
        if stores:
            self.kept.require_room(owner, len(as_json(own)))
        id = new_id(f"resp_{mark}" if mark else "resp")
        name, defaults = self._generations.service.names[0], self._generations.service.defaults
        response = begun(wanted, id, name, defaults, stores=stores)
        spaces = {
            name_in(space, one.name): (space, one.name)
            for space, one in wanted.functions
            if space is not None
        }
        return ResponseCall(owner, wanted, generation, Output(response, spaces), own, previous)
