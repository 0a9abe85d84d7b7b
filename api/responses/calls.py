"""`POST /v1/responses`: from its fields to a response, whole, streamed or in the background."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flask import Response, g, jsonify, request

from api.follow import awaited
from api.http.body import of_schema
from api.http.errors import ApiError
from api.http.hooks.keys import presented_owner
from api.jobs.store import explain
from api.openai.answers import error_shape
from api.openai.generation import Generations
from api.responses.background import Background
from api.responses.call import Call
from api.responses.generating import begun, generation_of
from api.responses.items import as_json, messages_of, new_id, stored_items
from api.responses.kept import Kept
from api.responses.output import Output
from api.responses.schemas import ResponseRequest, refuse_by_name
from api.responses.shapes import Event, InputItem, OutputItem
from api.service import Service
from api.stream import event, event_stream
from deferred.errors import StoreError
from deferred.jobs import Jobs

MARK_HEADER = "X-Upstream-Mark"  # of a router, which finds this server by it in the ids
MARK = re.compile("[0-9a-f]{8}")


class ResponseCalls:
    def __init__(self, service: Service, generations: Generations, jobs: Jobs) -> None:
        self._service = service
        self._generations = generations
        self._executor = ThreadPoolExecutor(1, "responses")
        self.kept = Kept(jobs, service.config)
        self.background = Background(service, self.kept, self._executor)

    def create(self, data: dict[str, Any], arrival_s: float) -> Response:
        call = self._call(data, arrival_s)
        if call.wanted.background:
            return self._in_background(call)
        self._service.submit(*call.generation.inferences, asked=call.wanted)
        return self._streamed(call) if call.wanted.stream else self._whole(call)

    def _call(self, data: dict[str, Any], arrival_s: float) -> Call:
        refuse_by_name(data)
        wanted = of_schema(data, ResponseRequest)
        if wanted.background and (wanted.stream or wanted.store is False):
            field = "stream" if wanted.stream else "store"
            raise ApiError(
                400,
                "field 'background' needs 'stream' not to be true and 'store' not to be false",
                param=field,
            )
        owner, previous = presented_owner(), None
        items: list[InputItem | OutputItem] = []
        if wanted.previous_response_id is not None:
            previous, items = self.kept.earlier(owner, wanted.previous_response_id)
        own = stored_items(wanted.input)
        generation = generation_of(
            wanted, messages_of([*items, *own]), self._generations, arrival_s
        )
        mark = request.headers.get(MARK_HEADER, "")
        id = new_id(f"resp_{mark}" if MARK.fullmatch(mark) else "resp")
        response = begun(wanted, id, self._generations.model)
        if response["store"]:
            self.kept.require_room(owner, len(as_json(own)))
        return Call(owner, wanted, generation, Output(response), own, previous)

    def _whole(self, call: Call) -> Response:
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
            self._store(call)
        return jsonify(call.output.response)

    def _streamed(self, call: Call) -> Response:
        output, first = call.output, call.generation.inferences[0]

        def events() -> Iterator[bytes | None]:
            for told in output.opening():
                yield _sent(told)
            try:
                for found in call.read():
                    yield None if found is None else _sent(found)
                if call.stores:  # not in this thread, which may serve all streams
                    stored = self._executor.submit(self._store, call)
                    stored.add_done_callback(lambda _: first.updated.set())
                    while not stored.done():
                        yield None
                    stored.result()
            except ApiError as error:
                output.fail(error.message)
            except StoreError as error:
                output.fail(explain(error).message)
            yield _sent(output.last())

        return event_stream(self._service, call.generation.inferences, events(), error_shape)

    def _in_background(self, call: Call) -> Response:
        inferences = call.generation.inferences
        queued = jsonify(call.output.response)  # as it is now
        self._store(call)
        self.background.follow(call)
        try:
            self._service.submit(*inferences, asked=call.wanted)
        except ApiError:
            self.background.cancel(call.id)
            self.kept.delete(call.owner, call.id)
            raise
        g.pop("inferences", None)  # they continue: the log must not count them as cancelled
        return queued

    def _store(self, call: Call) -> None:
        self.kept.create(call.owner, call.output.response, call.own, call.previous)


def _sent(told: Event) -> bytes:
    return b"event: " + told["type"].encode() + b"\n" + event(told)
