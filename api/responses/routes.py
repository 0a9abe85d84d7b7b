"""OpenAI's Responses API, `/v1/responses`: a response whole, streamed, in the background or as a
line of a batch. docs/openai.md lists what is supported."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Literal, cast

from flask import Blueprint, Response, g, request
from pydantic import ConfigDict
from pydantic_core import from_json

from api.http.body import of_schema, read_body
from api.http.errors import ApiError, invalid, show, store_refusal
from api.jobs.lines import Line
from api.jobs.pages import AFTER, ORDERS, ListPage, query_choice, query_limit
from api.openai.errors import OpenAIError, error_shape, openai_errors
from api.openai.forms import ChatForm
from api.openai.generation import Generations
from api.openapi import GENERATING, STORED, Answer, limit, respond
from api.responses.generating import begun, generation_of
from api.responses.items import InputItem, Json, messages_of, new_id, stored_items
from api.responses.output import EVENTS, GeneratedResponse, Output, ResponseCall
from api.responses.schemas import ResponseRequest, name_in
from api.responses.stored import GONE, EventLogs, StoredResponses, encoded
from api.service import Service
from api.stream import event_stream, stream_of
from deferred.errors import StoreError
from deferred.jobs import Jobs

log = logging.getLogger(__name__)

PATH = "/v1/responses"
LISTED, MOST_LISTED = 20, 100
NUMBER = re.compile("[0-9]{1,9}")
MARK_HEADER = "X-Upstream-Mark"  # of a router, which finds this server by it in the ids
MARK = re.compile("[0-9a-f]{8}")


class InputTokens(Answer):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputItems(ListPage[InputItem]):
    model_config = ConfigDict(title="InputItems")


class DeletedResponse(Answer):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def make_blueprint(calls: ResponseCalls) -> Blueprint:
    blueprint = Blueprint("responses", __name__, url_prefix=PATH)
    blueprint.post("")(calls.create)
    blueprint.post("/input_tokens")(calls.input_tokens)
    blueprint.post("/compact")(calls.compact)
    blueprint.get("/<response_id>")(calls.retrieve)
    blueprint.delete("/<response_id>")(calls.delete)
    blueprint.post("/<response_id>/cancel")(calls.cancel)
    blueprint.get("/<response_id>/input_items")(calls.input_items)
    return blueprint


class ResponseCalls:
    """The handlers, and what batches and the end of the server need of them. Raises ApiError, and
    StoreError."""

    def __init__(self, service: Service, generations: Generations, jobs: Jobs) -> None:
        self._service = service
        self._executor = ThreadPoolExecutor(1, "responses")
        self._jobs = jobs
        self._generations = generations
        self._logs = EventLogs()
        self._stored = StoredResponses(service, jobs, self._executor, self._logs)

    def settle(self, timeout_s: float) -> None:
        """Returns when the responses that were generated in the background are stored."""
        last = self._executor.submit(int)  # in a queue that one thread works off
        if wait([last], timeout_s).not_done:
            log.error("responses are lost, they could not be stored within %g s", timeout_s)

    def line(self, owner: str, body: dict[str, Any], arrival_s: float) -> Line:
        """As a line of a batch: the response is in the batch's output, so it is kept for later
        calls only where the line asks for it. Raises ApiError."""
        if body.get("background"):
            raise invalid("background", "must be false or left out in a batch")
        wanted = of_schema(body, ResponseRequest)
        call = self._make(owner, wanted, arrival_s, stores=False)

        def answers() -> Iterator[dict[str, Any] | None]:
            for event in call.read():
                if event is None:
                    yield None
            if call.stores:
                try:
                    self._stored.create(call)
                except StoreError as error:
                    raise store_refusal(error) from error
            yield call.output.response.model_dump()

        return Line(self._service, call.generation, answers())

    @openai_errors(
        *GENERATING,
        404,
        body=ResponseRequest,
        whole=GeneratedResponse,
        events=EVENTS | OpenAIError,
    )
    def create(self) -> Response:
        wanted = read_body(request, ResponseRequest, self._service.config.max_body_bytes)
        mark = request.headers.get(MARK_HEADER, "")
        if not MARK.fullmatch(mark):
            mark = ""
        call = self._make(g.owner, wanted, g.arrival_s, mark=mark)
        if call.wanted.background:
            return self._in_background(call)
        self._service.submit(*call.inferences, asked=call.wanted)
        if call.wanted.stream:
            return self._streamed(call)
        self._service.wait(call.read(), *call.inferences)
        if call.stores:
            self._stored.create(call)
        return respond(call.output.response)

    @openai_errors(*GENERATING, 404, body=ResponseRequest, whole=InputTokens)
    def input_tokens(self) -> Response:
        """Of a call that is not made."""
        wanted = read_body(request, ResponseRequest, self._service.config.max_body_bytes)
        wanted.store, wanted.background = False, False
        call = self._make(g.owner, wanted, g.arrival_s)
        return respond(InputTokens(input_tokens=call.generation.prompt_tokens))

    @openai_errors(404)
    def compact(self) -> Response:
        raise ApiError(
            404,
            f"{PATH}/compact is not offered; allowed: {PATH} with 'truncation' \"auto\", which "
            "leaves out the first items",
        )

    @openai_errors(
        *STORED,
        404,
        whole=GeneratedResponse,
        events=EVENTS | OpenAIError,
        query={
            "stream": {"enum": ["true", "false"]},
            "starting_after": {"type": "integer", "minimum": 0},
        },
    )
    def retrieve(self, response_id: str) -> Response:
        first = _first_event()
        _, response = self._stored.read(g.owner, response_id)
        return respond(response) if first is None else self._resume(response_id, first)

    @openai_errors(*STORED, 404, whole=DeletedResponse)
    def delete(self, response_id: str) -> Response:
        self._jobs.store.responses.delete(g.owner, response_id, time.time())
        self._forget(response_id)
        return respond(DeletedResponse(id=response_id))

    @openai_errors(*STORED, 404, whole=GeneratedResponse)
    def cancel(self, response_id: str) -> Response:
        running, response = self._stored.read(g.owner, response_id)
        if not response.background:
            raise ApiError(
                400,
                "only a response with 'background' can be cancelled; close the connection of "
                "another",
                code="invalid_status",
            )
        if running:
            response.status = "cancelled"
            if self._stored.end(response):
                self._stored.cancel(response_id)
        return respond(self._stored.read(g.owner, response_id)[1])

    @openai_errors(
        *STORED,
        404,
        whole=InputItems,
        query={**AFTER, "limit": limit(MOST_LISTED), "order": {"enum": list(ORDERS)}},
    )
    def input_items(self, response_id: str) -> Response:
        stored = self._jobs.store.responses.get(g.owner, response_id, time.time())
        items: list[Json] = from_json(stored.input)
        if query_choice(request, "order", ORDERS, "desc") == "desc":
            items.reverse()
        most = query_limit(request, LISTED, MOST_LISTED)
        if (after := request.args.get("after")) is not None:
            places = [place for place, item in enumerate(items) if item["id"] == after]
            if not places:
                raise ApiError(
                    404, f"there is no item {show(after)} in {response_id}", param="after"
                )
            items = items[places[0] + 1 :]
        page = items[:most]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        shown = {"data": page, "first_id": first, "last_id": last, "has_more": len(items) > most}
        return respond(InputItems.model_validate(shown))

    def _resume(self, response_id: str, first: int) -> Response:
        """The events of a response in the background from number `first` on."""
        following = self._logs.follow(response_id, first)
        if following is None:
            raise ApiError(400, GONE, param="stream")
        client = request.environ.get("gunicorn.socket")
        unwatch = self._service.departures.watch(client, following.leave)
        return stream_of(self._service, [following], following.read(), unwatch)

    def _forget(self, response_id: str) -> None:
        self._stored.cancel(response_id)
        self._logs.drop(response_id)

    def _streamed(self, call: ResponseCall) -> Response:
        output, first = call.output, call.inferences[0]

        def events() -> Iterator[bytes | None]:
            for new in output.opening():
                yield encoded(new)
            try:
                for found in call.read():
                    yield None if found is None else encoded(found)
                if call.stores:  # not in this thread, which may serve all streams
                    stored = self._executor.submit(self._stored.create, call)
                    stored.add_done_callback(lambda _: first.updated.set())
                    while not stored.done():
                        yield None
                    stored.result()
            except ApiError as error:
                output.fail(error.message)
            except StoreError as error:
                output.fail(store_refusal(error).message)
            yield encoded(output.last())

        return event_stream(self._service, call.inferences, events(), error_shape)

    def _in_background(self, call: ResponseCall) -> Response:
        queued = respond(call.output.response)  # as it is now
        self._stored.create(call)
        self._stored.follow(call)
        try:
            self._service.submit(*call.inferences, asked=call.wanted)
        except ApiError:
            self._forget(call.id)
            self._jobs.store.responses.delete(call.owner, call.id, time.time())
            raise
        g.pop("inferences", None)  # they continue: the log must not count them as cancelled
        return self._resume(call.id, 0) if call.wanted.stream else queued

    def _make(
        self,
        owner: str,
        wanted: ResponseRequest,
        arrival_s: float,
        *,
        mark: str = "",
        stores: bool = True,
    ) -> ResponseCall:
        """`mark`: a part of the response's id. `stores`: the response is kept unless the call says
        whether it is."""
        for kind in wanted.left_out:
            self._generations.note(f"tools of type {show(kind)}", "left out of a response")
        if wanted.store is not None:
            stores = wanted.store
        if wanted.background and not stores:
            raise ApiError(400, "field 'background' needs 'store' not to be false", param="store")
        previous = None
        items: list[Json] = []
        if wanted.previous_response_id is not None:
            previous, items = self._stored.earlier(owner, wanted.previous_response_id)
        own = stored_items(wanted.input)
        generation = generation_of(
            wanted, messages_of([*items, *own]), self._generations, arrival_s
        )
        if stores:
            self._stored.require_room(owner, own)
        id = new_id(f"resp_{mark}" if mark else "resp")
        name, defaults = self._service.names[0], self._service.defaults
        response = begun(wanted, id, name, defaults, stores=stores)
        spaces = {
            name_in(space, one.name): (space, one.name)
            for space, one in wanted.functions
            if space is not None
        }
        output = Output(response, cast(ChatForm, generation.form), spaces)
        return ResponseCall(owner, wanted, generation, output, own, previous)


def _first_event() -> int | None:
    """The number of the first event of a stream; None where none is asked for."""
    after = request.args.get("starting_after")
    if after is not None and not NUMBER.fullmatch(after):
        raise ApiError(
            400,
            f"'starting_after' must be the sequence_number of an event, got {show(after)}",
            param="starting_after",
        )
    if query_choice(request, "stream", ("true", "false"), "false") == "true":
        return 0 if after is None else int(after) + 1
    if after is not None:
        raise ApiError(400, "'starting_after' needs 'stream' to be true", param="starting_after")
    return None
