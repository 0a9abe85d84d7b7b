"""OpenAI's Responses API: `/v1/responses`. docs/responses.md lists what is supported."""

from __future__ import annotations

import re

from flask import Blueprint, Response, g, jsonify, request

from api.http.body import read_object
from api.http.errors import ApiError, show
from api.http.hooks import presented_owner
from api.jobs.store import AFTER, ORDERS, query_choice, query_limit, register_store_errors
from api.openai.errors import openai_errors
from api.openai.shapes import OpenAIError
from api.openapi import GENERATING, STORED, limit
from api.responses.calls import ResponseCalls
from api.responses.schemas import ResponseRequest
from api.responses.shapes import (
    DeletedResponse,
    Event,
    GeneratedResponse,
    InputItems,
    InputTokens,
)
from api.service import Service

PATH = "/v1/responses"
LISTED, MOST_LISTED = 20, 100
NUMBER = re.compile("[0-9]{1,9}")


def make_blueprint(service: Service, calls: ResponseCalls) -> Blueprint:
    blueprint = Blueprint("responses", __name__, url_prefix=PATH)
    register_store_errors(blueprint)
    kept = calls.kept

    @blueprint.post("")
    @openai_errors(
        *GENERATING,
        404,
        body=ResponseRequest,
        whole=GeneratedResponse,
        events=Event | OpenAIError,
    )
    def create() -> Response:
        return calls.create(read_object(request, service.config.max_body_bytes), g.arrival_s)

    @blueprint.post("/input_tokens")
    @openai_errors(*GENERATING, 404, body=ResponseRequest, whole=InputTokens)
    def input_tokens() -> Response:
        asked = read_object(request, service.config.max_body_bytes)
        told: InputTokens = {
            "object": "response.input_tokens",
            "input_tokens": calls.input_tokens(asked, g.arrival_s),
        }
        return jsonify(told)

    @blueprint.post("/compact")
    @openai_errors(404)
    def compact() -> Response:
        raise ApiError(
            404,
            f"{PATH}/compact is not offered; allowed: {PATH} with 'truncation' \"auto\", which "
            "leaves out the first items",
        )

    @blueprint.get("/<response_id>")
    @openai_errors(
        *STORED,
        404,
        whole=GeneratedResponse,
        events=Event | OpenAIError,
        query={
            "stream": {"enum": ["true", "false"]},
            "starting_after": {"type": "integer", "minimum": 0},
        },
    )
    def retrieve(response_id: str) -> Response:
        first = first_event()
        _, response = present(response_id)
        return jsonify(response) if first is None else calls.resume(response_id, first)

    @blueprint.delete("/<response_id>")
    @openai_errors(*STORED, 404, whole=DeletedResponse)
    def delete(response_id: str) -> Response:
        calls.delete(response_id)
        told: DeletedResponse = {"id": response_id, "object": "response", "deleted": True}
        return jsonify(told)

    @blueprint.post("/<response_id>/cancel")
    @openai_errors(*STORED, 404, whole=GeneratedResponse)
    def cancel(response_id: str) -> Response:
        running, response = present(response_id)
        if not response["background"]:
            raise ApiError(
                400,
                "only a response with 'background' can be cancelled; close the connection of "
                "another",
                code="invalid_status",
            )
        if running and kept.end({**response, "status": "cancelled"}):
            calls.background.cancel(response_id)
        return jsonify(present(response_id)[1])

    @blueprint.get("/<response_id>/input_items")
    @openai_errors(
        *STORED,
        404,
        whole=InputItems,
        query={**AFTER, "limit": limit(MOST_LISTED), "order": {"enum": list(ORDERS)}},
    )
    def input_items(response_id: str) -> Response:
        items = kept.input_items(presented_owner(), response_id)
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
        told: InputItems = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > most,
        }
        return jsonify(told)

    def present(response_id: str) -> tuple[bool, GeneratedResponse]:
        """Whether it is still being generated, and the response as it is now."""
        running, response = kept.read(presented_owner(), response_id)
        if running and calls.background.has_begun(response_id):
            response["status"] = "in_progress"
        return running, response

    def first_event() -> int | None:
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
            raise ApiError(
                400, "'starting_after' needs 'stream' to be true", param="starting_after"
            )
        return None

    return blueprint
