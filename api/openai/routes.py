"""OpenAI's API: `/v1/models`, `/v1/completions`, `/v1/chat/completions`.

docs/openai.md lists what is supported and what differs.
"""

from __future__ import annotations

from typing import Literal

from flask import Blueprint, Response, g, request

from api.http.body import read_object
from api.openai.errors import OpenAIError, error_shape, openai_errors
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.openai.forms import ChatChunk, ChatCompletion, Completion, CompletionChunk
from api.openai.generation import DONE, Generations
from api.openapi import GENERATING, Answer, respond
from api.service import Service
from api.stream import answer


class ModelCard(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "effective-batching"
    max_model_len: int  # vLLM's: tokens of a prompt and its answer


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelCard]


def make_blueprint(service: Service, generations: Generations) -> Blueprint:
    blueprint = Blueprint("openai", __name__, url_prefix="/v1")
    most_bytes = service.config.max_body_bytes

    def card(name: str) -> ModelCard:
        service.require_ready()  # routers take a list for a server that takes requests
        return ModelCard(id=name, max_model_len=service.context)

    @blueprint.get("/models")
    @openai_errors(503, whole=ModelList)
    def models() -> Response:
        return respond(ModelList(data=[card(name) for name in service.names]))

    @blueprint.get("/models/<path:name>")
    @openai_errors(404, 503, whole=ModelCard)
    def model(name: str) -> Response:
        service.require_served(name, ())
        return respond(card(name))

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
        call = generations.completion(read_object(request, most_bytes), g.arrival_s)
        return answer(service, call, error_shape, stream=bool(call.wanted.stream))

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
        call = generations.chat(read_object(request, most_bytes), g.arrival_s)
        return answer(service, call, error_shape, stream=bool(call.wanted.stream))

    return blueprint
