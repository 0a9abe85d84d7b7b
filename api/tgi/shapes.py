"""The responses of TGI's API, as types that follow text-generation-inference's
`router/src/lib.rs`. The code that builds a response is checked against them, and `/openapi.json` is
generated from them."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from api.tgi.steps import Finish


class TgiError(TypedDict):
    error: str
    error_type: str


class TopToken(TypedDict):
    id: int
    text: str
    logprob: float
    special: bool


class PromptToken(TypedDict):
    id: int
    text: str
    logprob: float | None


class Sequence(TypedDict):
    finish_reason: Finish
    generated_tokens: int
    seed: int | None
    prefill: list[PromptToken]
    tokens: list[TopToken]
    top_tokens: NotRequired[list[list[TopToken]]]


class OtherSequence(Sequence):
    generated_text: str


class Details(Sequence):
    best_of_sequences: NotRequired[list[OtherSequence]]


class Generated(TypedDict):
    generated_text: str
    details: NotRequired[Details]


class StreamDetails(TypedDict):
    finish_reason: Finish
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamToken(TypedDict):
    index: int
    token: TopToken
    top_tokens: NotRequired[list[TopToken]]
    generated_text: str | None
    details: StreamDetails | None


class Info(TypedDict):
    model_id: str
    model_sha: None
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int | None
    max_total_tokens: int | None
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: None
    sha: None
    docker_label: None
