"""The project's own API: `/inference` and `/stats`.

Exactly `num_tokens` tokens are generated and end tokens are ignored, so a workload means the same
work in every mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from flask import Blueprint, Response, g, jsonify, request
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from api import limits
from api.defaults import NAMES
from api.follow import Follower
from api.http.body import read_body
from api.http.errors import ApiError, Error
from api.openapi import GENERATING, Answer, plain_errors, respond
from api.service import READY, Health, ServerDescription, Service
from api.signals import Signals
from api.stream import PLACE, around_text, event, event_stream, quoted
from deferred.jobs import Jobs
from engine.inference import Inference
from seams import ServiceClass
from telemetry.figures import Figures, Iterations

MOST_DEADLINE_S = 30 * 86_400


class InferenceRequest(Signals):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: Annotated[str, Field(min_length=1, description="a string of at least one character")]
    num_tokens: limits.Count = Field(
        description="a whole number from 1 to the model's context less the prompt's tokens"
    )
    temperature: limits.Temperature = Field(1.0, description=limits.TEMPERATURE)
    top_k: limits.Count | None = Field(None, description=limits.COUNT)
    top_p: limits.Share = Field(1.0, description=limits.SHARE)
    seed: limits.Seed | None = Field(None, description=limits.SEED)
    stream: bool = Field(False, description="true or false")
    model: str | None = Field(None, description="a name of the served model")
    service_class: ServiceClass = Field(
        "immediate", alias="class", description="'immediate' or 'deferred'"
    )
    deadline_s: float | None = Field(
        None, gt=0, le=MOST_DEADLINE_S, description=f"seconds, above 0 and up to {MOST_DEADLINE_S}"
    )


class Timing(Answer):  # seconds by the server's clock, from the arrival of the request's body on
    queue_s: float
    ttft_s: float
    tpot_s: float | None
    latency_s: float


class InferenceAnswer(Answer):
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
    done: Literal[True] = True


class StatsAnswer(Figures, ServerDescription):
    jobs: dict[str, Any]


class StatsReset(Answer):
    reset: Literal[True] = True


def make_blueprint(service: Service, jobs: Jobs) -> Blueprint:
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
        wanted = read_body(request, InferenceRequest, service.config.max_body_bytes)
        service.require_served(wanted.model)
        service.require_ready()
        said = wanted.model_dump(include=NAMES, exclude_unset=True)
        accepted = Inference(
            service.encode("prompt", [wanted.prompt])[0],
            wanted.num_tokens,
            service.defaults.sampling(said, wanted.seed),
            g.arrival_s,
            service_class=wanted.service_class,
            deadline_s=wanted.deadline_s,
            streaming=wanted.stream,
        )
        service.submit(accepted, asked=wanted)
        if wanted.stream:
            return event_stream(service, [accepted], _events(service, accepted, wanted.prompt))
        pieces = service.wait(_read(service, accepted), accepted)
        whole = "".join(text for text, _ in pieces)
        return respond(_answer(InferenceAnswer, accepted, wanted.prompt, whole))

    @blueprint.get("/stats")
    @plain_errors(whole=StatsAnswer)
    def stats() -> Response:
        figures = service.stats.summary(service.clock(), service.manager)
        return jsonify({**figures, **service.describe(), "jobs": jobs.describe()})

    @blueprint.post("/stats/reset")
    @plain_errors(whole=StatsReset)
    def reset() -> Response:
        service.stats.reset(service.clock())
        return respond(StatsReset())

    @blueprint.get("/stats/iterations")
    @plain_errors(whole=Iterations)
    def iterations() -> Response:
        return jsonify(service.stats.iterations())

    @blueprint.get("/health")
    @plain_errors(503, whole=Health)
    def health() -> Response:
        service.require_ready()
        if not service.departures.alive:
            raise ApiError(503, "the thread that detects disconnected clients has ended")
        return jsonify(READY)

    return blueprint


def _read(service: Service, accepted: Inference) -> Iterator[tuple[str, int] | None]:
    """Texts with the numbers of their tokens; None: there is none before the next update."""
    follower = Follower(accepted, service.tokenizer, accepted.prompt_tokens)
    while not follower.ended:
        before = follower.count
        text = follower.text(accepted.max_tokens)
        if (tokens := follower.count - before) or text:
            yield text, tokens
        if not follower.ended:
            yield None
    service.outcome(accepted)


def _events(service: Service, accepted: Inference, prompt: str) -> Iterator[bytes | None]:
    texts = []
    before, after = around_text(InferencePiece(text=PLACE, tokens=1))
    for found in _read(service, accepted):
        if found is None:
            yield None
            continue
        text, tokens = found
        texts.append(text)
        if tokens == 1:
            yield before + quoted(text).encode() + after
        else:
            yield event(InferencePiece(text=text, tokens=tokens))
    yield event(_answer(InferenceEnd, accepted, prompt, "".join(texts)))


def _answer(
    kind: type[InferenceAnswer], done: Inference, prompt: str, generated: str
) -> InferenceAnswer:
    record = done.record
    assert record is not None
    return kind(
        completion=prompt + generated,
        generated=generated,
        num_tokens=record.generated,
        prompt_tokens=record.prompt_tokens,
        seed=done.sampling.seed,
        timing=Timing.model_validate(record, from_attributes=True),
    )
