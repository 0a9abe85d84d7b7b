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
from collections.abc import Iterator, Sequence
from typing import Any

from flask import Blueprint, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from api.follow import awaited, follow
from api.http.body import read_object
from api.http.errors import ApiError, busy, error_response, http_error, internal_error
from api.openai.answers import error_shape
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.openai.routes import DONE, Calls, with_openai_errors
from api.openai.served import ServedModel
from api.openai.shapes import ChatChunk, ChatCompletion, Completion, CompletionChunk, OpenAIError
from api.openapi import BODY, BUSY, GENERATING, documented
from api.service import COMPILING, READY, Health, Service
from api.stream import event, event_stream
from api.tgi.answers import (
    STATUS,
    Answer,
    generated,
    seed_of,
    shape,
    tgi_errors,
    timing,
    token_of,
    top_tokens,
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
from api.tgi.shapes import Generated, Info, StreamToken, TgiError
from api.tgi.steps import Steps
from api.tgi.tokens import register_tokens
from engine.inference import Inference, new_group
from requested import Constraint
from runtime.grammar.grammars import GrammarError, GrammarsBusyError
from text.stops import Stops

ROUTER = "effective-batching"


def make_blueprint(service: Service, served: ServedModel, calls: Calls) -> Blueprint:
    blueprint = Blueprint("tgi", __name__)
    config, tokenizer = service.config, service.tokenizer
    most_at_once = config.max_concurrent_requests or config.most_resident + config.max_waiting
    places = threading.BoundedSemaphore(most_at_once)

    @blueprint.post("/generate")
    @tgi_errors(422, *BODY, *BUSY, body=GenerateRequest, whole=Generated)
    def generate() -> Response:
        arrival_s = service.arrived_s()
        wanted = parse(read_object(request, config.max_body_bytes), GenerateRequest)
        return whole([wanted.inputs], wanted.asked, arrival_s, as_list=False)

    @blueprint.post("/generate_stream")
    @tgi_errors(422, *BODY, *BUSY, body=GenerateRequest, events=StreamToken | TgiError)
    def generate_stream() -> Response:
        arrival_s = service.arrived_s()
        wanted = parse(read_object(request, config.max_body_bytes), GenerateRequest)
        return streamed(wanted.inputs, wanted.asked, arrival_s)

    @blueprint.post("/")
    @tgi_errors(
        422,
        *BODY,
        *BUSY,
        body=CompatRequest,
        whole=list[Generated],
        events=StreamToken | TgiError,
    )
    def compat() -> Response:
        arrival_s = service.arrived_s()
        return compatible(read_object(request, config.max_body_bytes), arrival_s)

    @blueprint.post("/invocations")
    @documented(
        TgiError | OpenAIError,
        *(*GENERATING, 404, 422, 424, 500),
        body=CompatRequest | ChatRequest | CompletionRequest,
        whole=list[Generated] | ChatCompletion | Completion,
        events=StreamToken | ChatChunk | CompletionChunk | TgiError | OpenAIError,
        last=DONE,
    )
    def invocations() -> Response:
        """SageMaker's only path: the fields decide which request it is."""
        arrival_s = service.arrived_s()
        data = read_object(request, config.max_body_bytes)
        if "inputs" in data:
            return compatible(data, arrival_s)
        call = calls.chat if "messages" in data else calls.completion
        return with_openai_errors(lambda: call(data, arrival_s))

    def compatible(data: dict[str, Any], arrival_s: float) -> Response:
        wanted = parse(data, CompatRequest)
        asked = wanted.asked
        if asked.return_full_text is None:  # as TGI does here for models of text generation
            asked = asked.model_copy(update={"return_full_text": True})
        if isinstance(wanted.inputs, str):
            if wanted.stream:
                return streamed(wanted.inputs, asked, arrival_s)
            return whole([wanted.inputs], asked, arrival_s, as_list=True)
        if wanted.stream:
            raise InvalidError("`inputs` must be one string when streaming tokens")
        if not 0 < len(wanted.inputs) <= config.max_client_batch_size:
            raise InvalidError(
                f"Number of prompts must be > 0 and <= {config.max_client_batch_size}. "
                f"Given: {len(wanted.inputs)}"
            )
        return whole(wanted.inputs, asked, arrival_s, as_list=True)

    def constraint_of(asked: Parameters) -> Constraint | None:
        """Compiled, so that it is accepted from then on."""
        if asked.grammar is None:
            return None
        if service.grammars is None:
            raise InvalidError("grammar is not supported (--disable-grammar-support)")
        try:
            constraint = asked.grammar.constraint()
            service.grammars.compile(constraint)
        except GrammarError as error:
            raise InvalidError(f"grammar is not valid: {error}") from None
        except GrammarsBusyError as error:
            raise busy(COMPILING) from error
        return constraint

    def prepare(
        text: str,
        asked: Parameters,
        arrival_s: float,
        constraint: Constraint | None,
        *,
        streaming: bool,
    ) -> list[Inference]:
        """The generations for one text: `best_of` of them."""
        if not text:
            raise InvalidError("`inputs` cannot be empty")
        assert service.manager.model is not None
        context = service.manager.model.context
        fit(asked, tokenizer.least_tokens(text), config, context, read=False)
        if asked.truncate is not None:
            text = tokenizer.tail(text, asked.truncate)
        (ids,) = service.encode("inputs", [text], fit=False)
        kept, further = fit(asked, len(ids), config, context)
        best_of = asked.best_of or 1
        group = new_group() if best_of > 1 else 0
        told = streaming or asked.details or asked.decoder_input_details or best_of > 1
        return [
            Inference(
                ids[-kept:],
                further,
                sampling_of(asked, (asked.top_n_tokens or 0) if told else None, constraint),
                arrival_s,
                end_ids=tokenizer.end_ids,
                group=group,
                streaming=streaming or bool(asked.stop),
            )
            for _ in range(best_of)
        ]

    def take_place() -> None:
        if not places.acquire(blocking=False):
            service.stats.count_rejected()
            raise ApiError(
                429,
                f"{most_at_once} requests are being served (--max-concurrent-requests)",
                {"Retry-After": str(math.ceil(service.manager.queue.retry_after_s))},
            )

    def whole(
        texts: Sequence[str], asked: Parameters, arrival_s: float, *, as_list: bool
    ) -> Response:
        validate(asked, config, streaming=False)
        service.require_ready()
        constraint = constraint_of(asked)
        groups = [prepare(text, asked, arrival_s, constraint, streaming=False) for text in texts]
        everyone = [inference for group in groups for inference in group]
        service.require_possible(len(everyone), sum(i.prompt_tokens for i in everyone), "inputs")
        for inference in everyone:
            inference.updated = everyone[0].updated
        take_place()
        try:
            stops = Stops(asked.stop or ())
            readers = [Steps(service, inference, stops) for inference in everyone]
            submitted_s = service.clock()
            service.submit(*everyone, asked=asked)
            unwatch = service.watch(request.environ.get("gunicorn.socket"), *everyone)
            try:
                for _ in awaited(follow(readers), everyone[0].updated):
                    pass
            finally:
                unwatch()
                service.cancel(*everyone)
        finally:
            places.release()
        whole = iter(Answer(reader.inference, reader.all) for reader in readers)
        answers = [[next(whole) for _ in group] for group in groups]
        for group in answers:
            if len(group) > 1:
                group.sort(key=lambda answer: answer.mean_logprob, reverse=True)
        told = [generated(*pair, asked, tokenizer) for pair in zip(texts, answers, strict=True)]
        response = jsonify(told if as_list else told[0])
        response.headers.update(head(texts))
        best = [group[0] for group in answers]
        response.headers.update(timing(best, arrival_s, submitted_s, service.clock()))
        return response

    def streamed(text: str, asked: Parameters, arrival_s: float) -> Response:
        validate(asked, config, streaming=True)
        service.require_ready()
        (inference,) = prepare(text, asked, arrival_s, constraint_of(asked), streaming=True)
        take_place()
        try:
            service.submit(inference, asked=asked)
            response = event_stream(
                service,
                [inference],
                events(inference, text, asked),
                shape,
            )
        except BaseException:
            places.release()
            raise
        response.call_on_close(places.release)
        response.headers.update(head([text]))
        return response

    def events(inference: Inference, prompt: str, asked: Parameters) -> Iterator[bytes | None]:
        steps = []
        for step in follow([Steps(service, inference, Stops(asked.stop or ()))]):
            if step is None:
                yield None
                continue
            steps.append(step)
            told: StreamToken = {
                "index": len(steps),
                "token": token_of(step, inference, tokenizer),
                "generated_text": None,
                "details": None,
            }
            if asked.top_n_tokens:
                told["top_tokens"] = top_tokens(step, inference, tokenizer)
            if step.finish is not None:
                text = Answer(inference, steps).text
                told["generated_text"] = prompt + text if asked.return_full_text else text
                if asked.details:
                    told["details"] = {
                        "finish_reason": step.finish,
                        "generated_tokens": len(steps),
                        "seed": seed_of(inference),
                        "input_length": inference.prompt_tokens,
                    }
            yield event(told)

    def head(texts: Sequence[str]) -> dict[str, str]:
        model = service.describe()["model"]
        assert model is not None  # it has answered
        kind = "cpu" if model["device"] == "cpu" else "gpu"
        return {
            "x-compute-type": f"{kind}+optimized",
            "x-compute-characters": str(sum(map(len, texts))),
        }

    @blueprint.get("/info")
    @tgi_errors(whole=Info)
    def info() -> Response:
        model = service.manager.model
        context = None if model is None else model.context
        known = [n for n in (config.max_total_tokens, context) if n is not None]
        total = min(known, default=None)
        told: Info = {
            "model_id": served.name,
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": most_at_once,
            "max_best_of": config.max_best_of,
            "max_stop_sequences": config.max_stop_sequences,
            "max_input_tokens": config.max_input_tokens or (total and total - 1),
            "max_total_tokens": total,
            "validation_workers": config.threads,
            "max_client_batch_size": config.max_client_batch_size,
            "router": ROUTER,
            "version": None,
            "sha": None,
            "docker_label": None,
        }
        return jsonify(told)

    @blueprint.get("/")
    @tgi_errors(503, whole=Health)
    def health() -> Response:
        service.require_ready()
        return jsonify(READY)

    def answer(error: ApiError) -> Response:
        if request.path == "/detokenize":  # vLLM's
            return error_response(error, error_shape)
        response = jsonify(shape(error))
        response.status_code = STATUS.get(error.status, error.status)
        response.headers.extend(error.headers)
        return response

    register_tokens(blueprint, service, served)
    blueprint.register_error_handler(ApiError, answer)
    blueprint.register_error_handler(HTTPException, lambda error: answer(http_error(error)))
    blueprint.register_error_handler(Exception, lambda error: answer(internal_error(error)))
    return blueprint
