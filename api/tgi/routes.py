"""TGI's API: `/`, `/generate`, `/generate_stream`, `/invocations`, `/info`; beside it
`tokens.py`.

Responses follow text-generation-inference's router (`router/src/server.rs`), so that its clients
work here, with two differences: a stream that is refused or fails before its first token has an
error status, and 429 says when to try again. `schemas.py` has the fields, `answers.py` the
responses; all APIs share `/health` and `/metrics`, which are elsewhere.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from flask import Blueprint, Response, g, jsonify, request

from api.http.body import read_object
from api.http.errors import ApiError, answer_errors, error_response
from api.openai.errors import OpenAIError, error_shape
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.openai.forms import ChatChunk, ChatCompletion, Completion, CompletionChunk
from api.openai.generation import DONE, Generations
from api.openapi import BODY, BUSY, GENERATING, Answer, documented, respond
from api.service import READY, Health, Service
from api.stream import answer
from api.tgi.answers import (
    STATUS,
    Generated,
    Steps,
    StreamToken,
    TgiError,
    TgiGeneration,
    shape,
    tgi_errors,
    timing,
)
from api.tgi.schemas import (
    CompatRequest,
    GenerateRequest,
    InvalidError,
    Parameters,
    fit,
    parse,
    sampling_of,
    validate,
)
from api.tgi.tokens import TokenCalls
from engine.inference import Inference, new_group
from runtime.grammar.grammars import GrammarError
from text.stops import Stops


class Info(Answer):
    model_id: str
    model_sha: None = None
    model_pipeline_tag: str = "text-generation"
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int | None
    max_total_tokens: int | None
    validation_workers: int
    max_client_batch_size: int
    router: str = "effective-batching"
    version: None = None
    sha: None = None
    docker_label: None = None


def make_blueprint(service: Service, generations: Generations) -> Blueprint:
    blueprint = Blueprint("tgi", __name__)
    calls, tokens = TgiCalls(service, generations), TokenCalls(service, generations)
    blueprint.post("/generate")(calls.generate)
    blueprint.post("/generate_stream")(calls.generate_stream)
    blueprint.post("/")(calls.compat)
    blueprint.post("/invocations")(calls.invocations)
    blueprint.get("/info")(calls.info)
    blueprint.get("/")(calls.health)
    blueprint.post("/tokenize")(tokens.tokenize)
    blueprint.post("/detokenize")(tokens.detokenize)
    blueprint.post("/chat_tokenize")(tokens.chat_tokenize)
    answer_errors(blueprint, refused)
    return blueprint


def refused(error: ApiError) -> Response:
    if request.path == "/detokenize" or g.get("openai"):  # vLLM's, OpenAI's
        return error_response(error, error_shape)
    response = error_response(error, shape)
    response.status_code = STATUS.get(error.status, error.status)
    return response


class TgiCalls:
    """The handlers of requests and of what the server is. Raises ApiError."""

    def __init__(self, service: Service, generations: Generations) -> None:
        self._service = service
        self._generations = generations
        self._config = config = service.config
        self._most = config.max_concurrent_requests or config.most_resident + config.max_waiting
        self._places = threading.BoundedSemaphore(self._most)

    @tgi_errors(422, *BODY, *BUSY, body=GenerateRequest, whole=Generated)
    def generate(self) -> Response:
        parsed = parse(read_object(request, self._config.max_body_bytes), GenerateRequest)
        return self._answer([parsed.inputs], parsed.asked)

    @tgi_errors(422, *BODY, *BUSY, body=GenerateRequest, events=StreamToken | TgiError)
    def generate_stream(self) -> Response:
        parsed = parse(read_object(request, self._config.max_body_bytes), GenerateRequest)
        return self._answer([parsed.inputs], parsed.asked, stream=True)

    @tgi_errors(
        422, *BODY, *BUSY, body=CompatRequest, whole=list[Generated], events=StreamToken | TgiError
    )
    def compat(self) -> Response:
        return self._compatible(read_object(request, self._config.max_body_bytes))

    @documented(
        TgiError | OpenAIError,
        *(*GENERATING, 404, 422, 424, 500),
        body=CompatRequest | ChatRequest | CompletionRequest,
        whole=list[Generated] | ChatCompletion | Completion,
        events=StreamToken | ChatChunk | CompletionChunk | TgiError | OpenAIError,
        last=DONE,
    )
    def invocations(self) -> Response:
        """SageMaker's only path: the fields decide which request it is."""
        data = read_object(request, self._config.max_body_bytes)
        if "inputs" in data:
            return self._compatible(data)
        g.openai = True
        generations, service = self._generations, self._service
        make = generations.chat if "messages" in data else generations.completion
        call = make(data, g.arrival_s)
        return answer(service, call, error_shape, stream=bool(call.wanted.stream))

    @tgi_errors(whole=Info)
    def info(self) -> Response:
        config, service = self._config, self._service
        model = service.manager.model
        context = None if model is None else model.context
        known = [n for n in (config.max_total_tokens, context) if n is not None]
        total = min(known, default=None)
        return respond(
            Info(
                model_id=service.names[0],
                max_concurrent_requests=self._most,
                max_best_of=config.max_best_of,
                max_stop_sequences=config.max_stop_sequences,
                max_input_tokens=config.max_input_tokens or (total and total - 1),
                max_total_tokens=total,
                validation_workers=config.threads,
                max_client_batch_size=config.max_client_batch_size,
            )
        )

    @tgi_errors(503, whole=Health)
    def health(self) -> Response:
        self._service.require_ready()
        return jsonify(READY)

    def _compatible(self, data: dict[str, Any]) -> Response:
        parsed = parse(data, CompatRequest)
        asked, most = parsed.asked, self._config.max_client_batch_size
        if asked.return_full_text is None:  # as TGI does here for models of text generation
            asked = asked.model_copy(update={"return_full_text": True})
        if isinstance(parsed.inputs, str):
            return self._answer([parsed.inputs], asked, stream=bool(parsed.stream), as_list=True)
        if parsed.stream:
            raise InvalidError("`inputs` must be one string when streaming tokens")
        if not 0 < len(parsed.inputs) <= most:
            raise InvalidError(
                f"Number of prompts must be > 0 and <= {most}. Given: {len(parsed.inputs)}"
            )
        return self._answer(parsed.inputs, asked, as_list=True)

    def _answer(
        self,
        texts: Sequence[str],
        asked: Parameters,
        *,
        stream: bool = False,
        as_list: bool = False,
    ) -> Response:
        service = self._service
        groups = self._prepared(texts, asked, streaming=stream)
        generation = TgiGeneration(asked, groups, service.tokenizer, as_list)
        prompt_tokens = sum(steps.inference.prompt_tokens for steps in generation.choices)
        service.require_possible(len(generation.choices), prompt_tokens, "inputs")
        if not self._places.acquire(blocking=False):
            service.stats.count_rejected()
            raise ApiError(
                429,
                f"{self._most} requests are being served (--max-concurrent-requests)",
                {"Retry-After": str(math.ceil(service.manager.queue.retry_after_s))},
            )
        with ExitStack() as place:
            place.callback(self._places.release)
            submitted_s = service.clock()
            response = answer(service, generation, shape, stream=stream)
            if stream:
                response.call_on_close(place.pop_all().close)
            else:
                best = [group[0] for group in groups]
                headers = timing(best, g.arrival_s, submitted_s, service.clock())
                response.headers.update(headers)
        model = service.describe()["model"]
        assert model is not None  # it has answered
        kind = "cpu" if model["device"] == "cpu" else "gpu"
        response.headers["x-compute-type"] = f"{kind}+optimized"
        response.headers["x-compute-characters"] = str(sum(map(len, texts)))
        return response

    def _prepared(
        self, texts: Sequence[str], asked: Parameters, *, streaming: bool
    ) -> list[list[Steps]]:
        """The generations for each text: `best_of` of them."""
        service = self._service
        validate(asked, self._config, streaming=streaming)
        service.require_ready()
        constraint = None
        if asked.grammar is not None:  # compiled, so that it is accepted from then on
            try:
                constraint = asked.grammar.constraint()
            except GrammarError as error:
                raise InvalidError(f"grammar is not valid: {error}") from None
            service.require_compiled(constraint, "grammar")
        stops, updated = Stops(asked.stop or ()), threading.Event()
        best_of = asked.best_of or 1
        scored = streaming or asked.details or asked.decoder_input_details or best_of > 1
        logprobs = (asked.top_n_tokens or 0) if scored else None
        groups: list[list[Steps]] = []
        for text in texts:
            ids, further = self._fitting(text, asked)
            group = new_group() if best_of > 1 else 0
            groups.append([])
            for _ in range(best_of):
                inference = Inference(
                    ids,
                    further,
                    sampling_of(asked, logprobs, constraint),
                    g.arrival_s,
                    end_ids=service.tokenizer.end_ids,
                    group=group,
                    streaming=streaming or bool(asked.stop),
                    updated=updated,
                )
                before = text if asked.return_full_text else ""
                groups[-1].append(Steps(service, inference, stops, before))
        return groups

    def _fitting(self, text: str, asked: Parameters) -> tuple[list[int], int]:
        """The tokens of a prompt, and how many are to be generated."""
        service, tokenizer = self._service, self._service.tokenizer
        if not text:
            raise InvalidError("`inputs` cannot be empty")
        context = service.context
        fit(asked, tokenizer.least_tokens(text), self._config, context, read=False)
        if asked.truncate is not None:
            text = tokenizer.tail(text, asked.truncate)
        (ids,) = service.encode("inputs", [text], fit=False)
        most, further = fit(asked, len(ids), self._config, context)
        return ids[-most:], further
