"""OpenAI's API: `/v1/models`, `/v1/completions`, `/v1/chat/completions`.

What is offered of it, and what differs, is in docs/apis.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from threading import Event

from flask import Blueprint, Response, jsonify, request

from api.body import read_body
from api.chat import ChatTemplate, ConversationError
from api.choices import Choice, segments
from api.errors import ApiError, show
from api.openai_answers import ChatForm, CompletionForm, Form, error_shape, usage
from api.openai_schemas import (
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    seed_of_choice,
)
from api.service import Service
from api.stream import event, event_stream
from inference import Inference
from text import EncodingError, folder_of

log = logging.getLogger(__name__)

FRESH_SEED_BITS = 32
DONE = b"data: [DONE]\n\n"
MOST_NOTED = 100  # names of unknown fields that are logged


def model_id(model: str) -> str:
    """What clients call the model that `--model` names: its name, or its folder's."""
    folder = folder_of(model)
    return model if folder is None else folder.name


def make_door(service: Service, template: ChatTemplate) -> Blueprint:
    door = Blueprint("openai", __name__, url_prefix="/v1")
    served = model_id(service.config.model)
    card = {"id": served, "object": "model", "created": 0, "owned_by": "effective-batching"}
    noted: set[str] = set()

    @door.get("/models")
    def models() -> Response:
        return jsonify({"object": "list", "data": [card]})

    @door.get("/models/<path:name>")
    def model(name: str) -> Response:
        _require_model(name)
        return jsonify(card)

    @door.post("/completions")
    def completions() -> Response:
        arrival_s = service.clock()
        wanted = read_body(request, CompletionRequest, service.config.max_body_bytes)
        _require_offered(wanted)
        if wanted.best_of not in (None, wanted.choices):
            raise ApiError(
                400,
                f"field 'best_of' must be the same as 'n' ({wanted.choices}), got {wanted.best_of}",
                param="best_of",
            )
        prompts = [_prompt_ids(prompt) for prompt in wanted.prompts]
        form = CompletionForm(served, wanted, service.tokenizer)
        return _answer(wanted, prompts, wanted.max_tokens, form, arrival_s)

    @door.post("/chat/completions")
    def chat() -> Response:
        arrival_s = service.clock()
        wanted = read_body(request, ChatRequest, service.config.max_body_bytes)
        _require_offered(wanted)
        if wanted.top_logprobs is not None and not wanted.logprobs:
            raise ApiError(
                400, "field 'top_logprobs' needs 'logprobs' to be true", param="top_logprobs"
            )
        try:
            ids = template.encode([message.for_template() for message in wanted.messages])
        except (ConversationError, EncodingError) as error:
            raise ApiError(400, str(error), param="messages") from error
        form = ChatForm(served, wanted, service.tokenizer)
        most = wanted.max_completion_tokens or wanted.max_tokens
        return _answer(wanted, [ids], most, form, arrival_s)

    def _require_model(name: str) -> None:
        if name != served:
            raise ApiError(
                404,
                f"the model {show(name)} is not served here; allowed: {show(served)}",
                param="model",
                code="model_not_found",
            )

    def _require_offered(wanted: GenerationRequest) -> None:
        if wanted.model is not None:
            _require_model(wanted.model)
        for name in wanted.model_extra or {}:
            if name not in noted and len(noted) < MOST_NOTED:
                noted.add(name)
                log.warning("the field %s is unknown on /v1 and ignored", show(name))
        if wanted.stream_options is not None and not wanted.stream:
            raise ApiError(
                400, "field 'stream_options' needs 'stream' to be true", param="stream_options"
            )
        for key in wanted.logit_bias or {}:
            _require_token(int(key), "logit_bias")
        service.require_ready()

    def _require_token(token: int, field: str) -> None:
        if token >= service.tokenizer.vocab_size:
            raise ApiError(
                400,
                f"field '{field}': there is no token {token}; allowed: 0 to "
                f"{service.tokenizer.vocab_size - 1}",
                param=field,
            )

    def _prompt_ids(prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return service.encode("prompt", prompt)
        _require_token(max(prompt), "prompt")
        return prompt

    def _most_tokens(wanted: GenerationRequest, form: Form, known: int, asked: int | None) -> int:
        """Tokens to generate after a prompt of `known` tokens."""
        assert service.manager.model is not None
        context = service.manager.model.context
        room = context - known
        most = asked
        if most is None:
            most = min(DEFAULT_COMPLETION_TOKENS, room) if form.is_completion else room
        if room < 1 or most > room:
            further = "" if asked is None else f" and max_tokens ({asked})"
            raise ApiError(
                400,
                f"prompt ({known} tokens){further} exceed the model's context of {context}",
                param=form.prompt_field,
                code="context_length_exceeded",
            )
        return most

    def _choices(
        wanted: GenerationRequest,
        prompts: Sequence[list[int]],
        asked: int | None,
        form: Form,
        arrival_s: float,
    ) -> list[Choice]:
        if len(prompts) * wanted.choices > service.config.max_waiting:
            raise ApiError(
                400,
                f"{len(prompts)} prompts with {wanted.choices} choices are more requests than may "
                f"wait here; allowed: {service.config.max_waiting} (--max-waiting)",
                param="n",
            )
        echo = isinstance(wanted, CompletionRequest) and bool(wanted.echo)
        end_id = service.tokenizer.end_id
        ends = end_id is not None and not wanted.ignore_eos
        seed = secrets.randbits(FRESH_SEED_BITS) if wanted.seed is None else wanted.seed
        news = Event()
        choices: list[Choice] = []
        for prompt in prompts:
            most = _most_tokens(wanted, form, len(prompt), asked)
            for number in range(wanted.choices):
                inference = Inference(
                    prompt,
                    max(most, 1),  # none: the prompt alone is wanted, for its logprobs
                    wanted.sampling(seed_of_choice(seed, number), of_prompt=echo),
                    arrival_s,
                    end_ids=frozenset([end_id] if ends and end_id is not None else []),
                    service_class=wanted.service_class,
                    streaming=bool(wanted.stream or wanted.stops),  # a stop is looked for
                )
                inference.news = news
                choices.append(
                    Choice(
                        len(choices), inference, service, wanted.stops, echo=echo, most_tokens=most
                    )
                )
        return choices

    def _answer(
        wanted: GenerationRequest,
        prompts: Sequence[list[int]],
        asked: int | None,
        form: Form,
        arrival_s: float,
    ) -> Response:
        choices = _choices(wanted, prompts, asked, form, arrival_s)
        inferences = [choice.inference for choice in choices]
        prompt_tokens = sum(map(len, prompts))
        service.submit(*inferences)
        client = request.environ.get("gunicorn.socket")

        def events() -> Iterator[bytes]:
            for chunk in form.opening(len(choices)):
                yield event(chunk)
            for segment in segments(choices):
                for chunk in form.chunks(segment):
                    yield event(chunk)
            if wanted.include_usage:
                yield event(form.last(usage(prompt_tokens, choices)))
            yield DONE

        if wanted.stream:
            return event_stream(service, inferences, client, events(), error_shape)
        unwatch = service.watch(client, *inferences)
        try:
            parts = list(segments(choices))
        except ApiError:
            service.cancel(*inferences)
            raise
        finally:
            unwatch()
        return jsonify(form.whole(parts, len(choices), usage(prompt_tokens, choices)))

    return door
