"""The responses of OpenAI's API, as types.

The code that builds a response is checked against them, and `/openapi.json` is generated from them.
A key that is left out where it does not apply is `NotRequired`.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from api.openai.choices import Finish


class OpenAIErrorBody(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    error: OpenAIErrorBody


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int  # vLLM's: tokens of a prompt and its answer


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class PromptTokensDetails(TypedDict):
    cached_tokens: int  # keys and values of which were there; 0 without a prefix cache


class CompletionTokensDetails(TypedDict):
    """With `prediction`: drafts, of whatever origin, that were accepted and rejected."""

    reasoning_tokens: NotRequired[int]
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class Usage(TypedDict):
    prompt_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens: int
    completion_tokens_details: NotRequired[CompletionTokensDetails]
    total_tokens: int


class Head(TypedDict):
    """The first fields of every response."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Literal["default", "flex"]]


class ChunkHead(Head):
    usage: NotRequired[Usage | None]


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """`finish_reason` is null in all but the last chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Head):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(ChunkHead):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class Alternative(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(TypedDict):
    content: list[ChatToken]
    refusal: None


class CalledFunction(TypedDict):
    name: str
    arguments: str  # a JSON object, unless the answer was too long


class ChatCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None  # null beside calls without a text
    reasoning_content: NotRequired[str]  # before it
    refusal: None
    tool_calls: NotRequired[list[ChatCall]]
    function_call: NotRequired[CalledFunction]  # in its place, where `functions` were offered


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletion(Head):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """The first of a call has all fields; the others continue its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta] | None]
    function_call: NotRequired[FunctionDelta]


class ChatPart(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(ChunkHead):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatPart]
