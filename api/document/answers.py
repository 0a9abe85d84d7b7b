"""What the doors answer, as types for `/openapi.json`. They describe; no answer is made of them,
and tests compare the two.

A field without default is always there; one of `None` is left out where it does not apply.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

OpenAIFinish = Literal["stop", "length"]
TgiFinish = Literal["length", "eos_token", "stop_sequence"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


# --- the experiment's door, and what is everyone's --------------------------------------------


class Error(_Answer):
    error: str


class Timing(_Answer):
    queue_s: float
    ttft_s: float
    tpot_s: float | None
    latency_s: float


class InferenceAnswer(_Answer):
    completion: str
    generated: str
    num_tokens: int
    prompt_tokens: int
    seed: int
    timing: Timing


class InferencePiece(_Answer):
    text: str
    tokens: int


class InferenceEnd(InferenceAnswer):
    done: Literal[True]


class InferenceEvent(RootModel[InferencePiece | InferenceEnd | Error]):
    pass


class Health(_Answer):
    status: Literal["ready"]


class Stats(BaseModel):
    """docs/figures.md says what each figure means, and has those that are not listed here."""

    latency_per_token: float | None = Field(alias="latency-per-token")
    throughput: float | None
    total_tokens_handled: int = Field(alias="total-tokens-handled")
    total_elapsed_time: float = Field(alias="total-elapsed-time")
    counts: dict[str, int]
    mode: Literal["nobatch", "static", "dynamic"]
    policy: str
    model: dict[str, Any] | None
    machine: dict[str, Any]
    options: dict[str, Any]


class StatsReset(_Answer):
    reset: Literal[True]


class Iterations(_Answer):
    columns: list[str]
    kept: int
    dropped: int
    iterations: list[list[float]]


# --- OpenAI -----------------------------------------------------------------------------------


class OpenAIErrorBody(_Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(_Answer):
    error: OpenAIErrorBody


class ModelCard(_Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(_Answer):
    object: Literal["list"]
    data: list[ModelCard]


class Usage(_Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(_Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionPart(_Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: OpenAIFinish | None


class CompletionChoice(CompletionPart):
    finish_reason: OpenAIFinish


class _OpenAIAnswer(_Answer):
    id: str
    created: int
    model: str
    service_tier: Literal["default", "flex"] | None = None


class Completion(_OpenAIAnswer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(_OpenAIAnswer):
    object: Literal["text_completion"]
    choices: list[CompletionPart]
    usage: Usage | None = None


class CompletionEvent(RootModel[CompletionChunk | OpenAIError]):
    pass


class Alternative(_Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(_Answer):
    content: list[ChatToken]
    refusal: None


class ChatMessage(_Answer):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: OpenAIFinish


class ChatCompletion(_OpenAIAnswer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(_Answer):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatPart(_Answer):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: OpenAIFinish | None


class ChatChunk(_OpenAIAnswer):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatPart]
    usage: Usage | None = None


class ChatEvent(RootModel[ChatChunk | OpenAIError]):
    pass


# --- files and batches ------------------------------------------------------------------------


class StoredFile(_Answer):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class DeletedFile(_Answer):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class _Page(_Answer):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FilePage(_Page):
    data: list[StoredFile]


class BatchFault(_Answer):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(_Answer):
    object: Literal["list"]
    data: list[BatchFault]


class BatchCounts(_Answer):
    total: int
    completed: int
    failed: int


class BatchUsage(_Answer):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class StoredBatch(_Answer):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchPage(_Page):
    data: list[StoredBatch]


# --- TGI --------------------------------------------------------------------------------------


class TgiError(_Answer):
    error: str
    error_type: str


class TopToken(_Answer):
    id: int
    text: str
    logprob: float
    special: bool


class PromptToken(_Answer):
    id: int
    text: str
    logprob: float | None


class Sequence(_Answer):
    finish_reason: TgiFinish
    generated_tokens: int
    seed: int | None
    prefill: list[PromptToken]
    tokens: list[TopToken]
    top_tokens: list[list[TopToken]] | None = None


class OtherSequence(Sequence):
    generated_text: str


class Details(Sequence):
    best_of_sequences: list[OtherSequence] | None = None


class Generated(_Answer):
    generated_text: str
    details: Details | None = None


class GeneratedList(RootModel[list[Generated]]):
    pass


class StreamDetails(_Answer):
    finish_reason: TgiFinish
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamToken(_Answer):
    index: int
    token: TopToken
    top_tokens: list[TopToken] | None = None
    generated_text: str | None
    details: StreamDetails | None


class StreamEvent(RootModel[StreamToken | TgiError]):
    pass


class Piece(_Answer):
    id: int
    text: str
    start: int
    stop: int


class Pieces(RootModel[list[Piece]]):
    pass


class Info(_Answer):
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
