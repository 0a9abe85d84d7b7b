"""The responses of the Responses API, their items and their events, as types.

The code that builds them is checked against these, and `/openapi.json` is generated from them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from api.openai.shapes import ChatToken

Json = dict[str, Any]

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


# --- items ----------------------------------------------------------------------------------


class InputText(TypedDict):
    type: Literal["input_text"]
    text: str


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Json]  # empty: there are no tools that cite
    logprobs: list[ChatToken]


class Refusal(TypedDict):  # of another server, in a history
    type: Literal["refusal"]
    refusal: str


class InputMessage(TypedDict):
    id: str
    type: Literal["message"]
    status: Literal["completed"]
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText | Refusal]


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class FunctionCall(TypedDict):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]  # where the function was offered in one
    arguments: str


class FunctionCallOutput(TypedDict):
    id: str
    type: Literal["function_call_output"]
    status: Literal["completed"]
    call_id: str
    output: str


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class Reasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Json]  # empty: the reasoning itself is the content
    content: list[ReasoningText]


OutputItem = OutputMessage | FunctionCall | Reasoning
InputItem = InputMessage | FunctionCall | FunctionCallOutput | Reasoning


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class InputItems(TypedDict):
    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


# --- the response ---------------------------------------------------------------------------


class ResponseFault(TypedDict):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int  # 0: the cache keeps what was computed anyway


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class TextConfig(TypedDict):
    format: Json
    verbosity: NotRequired[str]


class GeneratedResponse(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: bool
    error: ResponseFault | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Json | None
    service_tier: NotRequired[Literal["default", "flex"]]
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | Json
    tools: list[Json]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


# --- events ---------------------------------------------------------------------------------


ResponseEventType = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class _Event(TypedDict):
    sequence_number: int  # from 0, one more with each event


class _OfItem(_Event):
    item_id: str
    output_index: int


class _OfContent(_OfItem):
    content_index: int


class ResponseEvent(_Event):
    """The response as it is when it begins and ends."""

    type: ResponseEventType
    response: GeneratedResponse


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(_OfContent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDelta(_OfContent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[ChatToken]


class TextDone(_OfContent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[ChatToken]


class ReasoningDelta(_OfContent):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(_OfContent):
    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(_OfItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_OfItem):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


Event = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
