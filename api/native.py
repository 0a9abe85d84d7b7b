"""The project's own API: `/inference` and `/stats`.

Exactly `num_tokens` tokens are generated and end tokens are ignored, so a workload means the same
work in every mode.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from flask import Blueprint, Response, jsonify, request
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from api.defaults import SamplingDefaults
from api.follow import Follower
from api.http.body import read_body
from api.http.errors import Error
from api.limits import (
    COUNT,
    FRESH_SEED_BITS,
    SEED,
    SHARE,
    TEMPERATURE,
    Count,
    Seed,
    Share,
    Temperature,
    mass,
)
from api.openapi import GENERATING, plain_errors
from api.service import READY, Description, Health, Service
from api.signals import Signals
from api.stream import event, event_stream, text_event
from engine.inference import Inference
from records import RequestRecord
from requested import Sampling, ServiceClass
from telemetry.figures import Figures, Iterations
from text.tokenizer import Detokenizer

MOST_DEADLINE_S = 30 * 86_400


class InferenceRequest(Signals):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: Annotated[str, Field(min_length=1, description="a string of at least one character")]
    num_tokens: Count = Field(
        description="a whole number from 1 to the model's context less the prompt's tokens"
    )
    temperature: Temperature = Field(1.0, description=TEMPERATURE)
    top_k: Count | None = Field(None, description=COUNT)
    top_p: Share = Field(1.0, description=SHARE)
    seed: Seed | None = Field(None, description=SEED)
    stream: bool = Field(False, description="true or false")
    model: str | None = Field(None, description="a name of the served model")
    service_class: ServiceClass = Field(
        "immediate", alias="class", description="'immediate' or 'deferred'"
    )
    deadline_s: float | None = Field(
        None, gt=0, le=MOST_DEADLINE_S, description=f"seconds, above 0 and up to {MOST_DEADLINE_S}"
    )

    def sampling(self, defaults: SamplingDefaults) -> Sampling:
        """With a fresh seed where none is given."""
        chosen = defaults.under(self, self.model_fields_set)
        return Sampling(
            seed=secrets.randbits(FRESH_SEED_BITS) if self.seed is None else self.seed,
            temperature=chosen.temperature,
            top_k=chosen.best,
            top_p=mass(chosen.top_p),
            min_p=chosen.min_p,
            repetition_penalty=chosen.repetition_penalty,
        )


class Timing(TypedDict):
    queue_s: float
    ttft_s: float
    tpot_s: float | None
    latency_s: float


class InferenceAnswer(TypedDict):
    completion: str
    generated: str
    num_tokens: int
    prompt_tokens: int
    seed: int
    timing: Timing


class InferencePiece(TypedDict):
    text: str
    tokens: int


class InferenceEnd(InferenceAnswer):
    done: Literal[True]


class StatsAnswer(Figures, Description):
    pass


class StatsReset(TypedDict):
    reset: Literal[True]


def make_blueprint(service: Service, require_served: Callable[[str | None], None]) -> Blueprint:
    """`require_served`: raises ApiError unless this model is served."""
    blueprint = Blueprint("inference", __name__)

    @blueprint.post("/inference")
    @plain_errors(
        404,
        *GENERATING,
        body=InferenceRequest,
        whole=InferenceAnswer,
        events=InferencePiece | InferenceEnd | Error,
    )
    def inference() -> Response:
        arrival_s = service.arrived_s()
        wanted = read_body(request, InferenceRequest, service.config.max_body_bytes)
        require_served(wanted.model)
        service.require_ready()
        accepted = Inference(
            service.encode("prompt", [wanted.prompt])[0],
            wanted.num_tokens,
            wanted.sampling(service.defaults),
            arrival_s,
            service_class=wanted.service_class,
            deadline_s=wanted.deadline_s,
            streaming=wanted.stream,
        )
        service.submit(accepted, asked=wanted)
        if wanted.stream:
            return event_stream(service, [accepted], events(accepted, wanted.prompt))
        record = service.finish(accepted, request.environ.get("gunicorn.socket"))
        return jsonify(_answer(accepted, record, wanted.prompt, text(accepted)))

    def text(done: Inference) -> str:
        detokenizer = Detokenizer(service.tokenizer)
        return detokenizer.push(done.ids[done.prompt_tokens :]) + detokenizer.finish()

    def events(accepted: Inference, prompt: str) -> Iterator[bytes | None]:
        follower = Follower(accepted, service.tokenizer, accepted.prompt_tokens)
        texts = []
        of_one = text_event(lambda text: InferencePiece(text=text, tokens=1))
        while not follower.ended:
            before = follower.count
            told = follower.text(accepted.max_tokens) + (follower.rest() if follower.ended else "")
            if (tokens := follower.count - before) or told:
                texts.append(told)
                piece: InferencePiece = {"text": told, "tokens": tokens}
                yield of_one(told) if tokens == 1 else event(piece)
            if not follower.ended:
                yield None
        answer = _answer(accepted, service.outcome(accepted), prompt, "".join(texts))
        end: InferenceEnd = {**answer, "done": True}
        yield event(end)

    @blueprint.get("/stats")
    @plain_errors(whole=StatsAnswer)
    def stats() -> Response:
        told: StatsAnswer = {
            **service.stats.summary(service.clock(), service.manager),
            **service.describe(),
        }
        return jsonify(told)

    @blueprint.post("/stats/reset")
    @plain_errors(whole=StatsReset)
    def reset() -> Response:
        service.stats.reset(service.clock())
        told: StatsReset = {"reset": True}
        return jsonify(told)

    @blueprint.get("/stats/iterations")
    @plain_errors(whole=Iterations)
    def iterations() -> Response:
        return jsonify(service.stats.iterations())

    @blueprint.get("/health")
    @plain_errors(503, whole=Health)
    def health() -> Response:
        service.require_ready()
        service.require_watched()
        return jsonify(READY)

    return blueprint


def _answer(done: Inference, record: RequestRecord, prompt: str, generated: str) -> InferenceAnswer:
    return {
        "completion": prompt + generated,
        "generated": generated,
        "num_tokens": record.generated,
        "prompt_tokens": record.prompt_tokens,
        "seed": done.sampling.seed,
        "timing": timing(record),
    }


def timing(record: RequestRecord) -> Timing:
    """Seconds by the server's clock, from the arrival of the request's body on."""
    return {
        "queue_s": record.queue_s,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "latency_s": record.latency_s,
    }
