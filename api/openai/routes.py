"""OpenAI's API: `/v1/models`, `/v1/completions`, `/v1/chat/completions`.

docs/openai.md lists what is supported and what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flask import Blueprint, Response, jsonify, request

from api.follow import awaited, follow
from api.http.body import of_schema, read_object
from api.http.errors import ApiError, error_response
from api.openai.answers import error_shape, openai_errors
from api.openai.choices import Segment
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.openai.generation import Generation, Generations
from api.openai.served import ServedModel
from api.openai.shapes import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    ModelCard,
    ModelList,
    OpenAIError,
)
from api.openapi import GENERATING
from api.service import Service
from api.stream import event, event_stream, text_event

DONE = "[DONE]"
END = f"data: {DONE}\n\n".encode()


class Calls:
    """The two endpoints that generate, for parsed bodies."""

    def __init__(self, service: Service, generations: Generations) -> None:
        self._service = service
        self._generations = generations

    def completion(self, data: dict[str, Any], arrival_s: float) -> Response:
        wanted = of_schema(data, CompletionRequest)
        return self._answer(self._generations.completion(wanted, arrival_s))

    def chat(self, data: dict[str, Any], arrival_s: float) -> Response:
        wanted = of_schema(data, ChatRequest)
        return self._answer(self._generations.chat(wanted, arrival_s))

    def _answer(self, generation: Generation) -> Response:
        wanted, form, inferences = generation.wanted, generation.form, generation.inferences
        service = self._service
        service.submit(*inferences, asked=wanted)

        def text_of(index: int) -> Callable[[str], bytes]:
            return text_event(lambda text: next(form.chunks(Segment(index, text))))

        def events() -> Iterator[bytes | None]:
            texts = [text_of(index) for index in range(len(inferences))]
            for chunk in form.opening(len(inferences)):
                yield event(chunk)
            for segment in follow(generation.choices):
                if segment is None:
                    yield None
                elif segment.tokens or segment.finish or segment.calls or segment.reasoning:
                    yield from map(event, form.chunks(segment))
                else:
                    yield texts[segment.index](segment.text)
            if wanted.include_usage:
                yield event(form.last(generation.usage()))
            yield END

        if wanted.stream:
            return event_stream(service, inferences, events(), error_shape)
        unwatch = service.watch(request.environ.get("gunicorn.socket"), *inferences)
        try:
            parts = list(awaited(follow(generation.choices), inferences[0].updated))
        except ApiError:
            service.cancel(*inferences)
            raise
        finally:
            unwatch()
        return jsonify(generation.whole(parts))


def make_blueprint(service: Service, served: ServedModel, calls: Calls) -> Blueprint:
    blueprint = Blueprint("openai", __name__, url_prefix="/v1")
    most_bytes = service.config.max_body_bytes

    def card(name: str) -> ModelCard:
        service.require_ready()  # routers take a list for a server that takes requests
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "effective-batching",
            "max_model_len": served.context,
        }

    @blueprint.get("/models")
    @openai_errors(503, whole=ModelList)
    def models() -> Response:
        told: ModelList = {"object": "list", "data": [card(name) for name in served.names]}
        return jsonify(told)

    @blueprint.get("/models/<path:name>")
    @openai_errors(404, 503, whole=ModelCard)
    def model(name: str) -> Response:
        served.require_named(name)
        return jsonify(card(name))

    @blueprint.post("/completions")
    @openai_errors(
        *GENERATING,
        404,
        body=CompletionRequest,
        whole=Completion,
        events=CompletionChunk | OpenAIError,
        last=DONE,
    )
    def completions() -> Response:
        arrival_s = service.arrived_s()
        return calls.completion(read_object(request, most_bytes), arrival_s)

    @blueprint.post("/chat/completions")
    @openai_errors(
        *GENERATING,
        404,
        body=ChatRequest,
        whole=ChatCompletion,
        events=ChatChunk | OpenAIError,
        last=DONE,
    )
    def chat() -> Response:
        arrival_s = service.arrived_s()
        return calls.chat(read_object(request, most_bytes), arrival_s)

    return blueprint


def with_openai_errors(call: Callable[[], Response]) -> Response:
    """For paths outside of `/v1` that return OpenAI's errors."""
    try:
        return call()
    except ApiError as error:
        return error_response(error, error_shape)
