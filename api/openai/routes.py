"""OpenAI's API: `/v1/models`, `/v1/completions`, `/v1/chat/completions`.

What is offered of it, and what differs, is in docs/apis.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response, jsonify, request

from api.http.body import read_body
from api.http.errors import ApiError
from api.openai.answers import error_shape
from api.openai.generation import Generation, Generations
from api.openai.schemas import ChatRequest, CompletionRequest
from api.service import Service
from api.stream import awaited, event, event_stream

DONE = b"data: [DONE]\n\n"


def make_door(service: Service, generations: Generations) -> Blueprint:
    door = Blueprint("openai", __name__, url_prefix="/v1")
    card = {
        "id": generations.model,
        "object": "model",
        "created": 0,
        "owned_by": "effective-batching",
    }

    @door.get("/models")
    def models() -> Response:
        service.require_ready()  # routers take 200 here for a server that takes requests
        return jsonify({"object": "list", "data": [card]})

    @door.get("/models/<path:name>")
    def model(name: str) -> Response:
        generations.require_model(name)
        service.require_ready()
        return jsonify(card)

    @door.post("/completions")
    def completions() -> Response:
        arrival_s = service.clock()
        wanted = read_body(request, CompletionRequest, service.config.max_body_bytes)
        return _answer(generations.completion(wanted, arrival_s))

    @door.post("/chat/completions")
    def chat() -> Response:
        arrival_s = service.clock()
        wanted = read_body(request, ChatRequest, service.config.max_body_bytes)
        return _answer(generations.chat(wanted, arrival_s))

    def _answer(generation: Generation) -> Response:
        wanted, form, inferences = generation.wanted, generation.form, generation.inferences
        service.submit(*inferences)

        def events() -> Iterator[bytes | None]:
            for chunk in form.opening(len(inferences)):
                yield event(chunk)
            for segment in generation.segments():
                if segment is None:
                    yield None
                    continue
                for chunk in form.chunks(segment):
                    yield event(chunk)
            if wanted.include_usage:
                yield event(form.last(generation.usage()))
            yield DONE

        if wanted.stream:
            return event_stream(service, inferences, events(), error_shape)
        unwatch = service.watch(request.environ.get("gunicorn.socket"), *inferences)
        try:
            parts = list(awaited(generation.segments(), inferences[0].news))
        except ApiError:
            service.cancel(*inferences)
            raise
        finally:
            unwatch()
        return jsonify(generation.whole(parts))

    return door
