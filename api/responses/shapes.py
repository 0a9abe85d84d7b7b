"""The responses of the Responses API: their items and their events. A field of type MISSING is left
out where it does not apply."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import MISSING, Field, SkipValidation

from api.openai.shapes import ChatToken
from api.openapi import Answer

Json = dict[str, Any]

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Logprobs = SkipValidation[list[ChatToken]]  # there may be many to a token


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


# --- items ----------------------------------------------------------------------------------


class InputText(Answer):
    type: Literal["input_text"] = "input_text"
    text: str


class OutputText(Answer):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Json] = Field(default_factory=list)  # there are no tools that cite
    logprobs: Logprobs = Field(default_factory=list)


class Refusal(Answer):  # of another server, in a history
    type: Literal["refusal"] = "refusal"
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class InputMessage(Answer):
    id: str
    type: Literal["message"] = "message"
    status: Literal["completed"] = "completed"
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText | Refusal]


class OutputMessage(Answer):
    id: str
    type: Literal["message"] = "message"
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class FunctionCall(Answer):
    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | MISSING = MISSING  # where the function was offered in one
    arguments: str


class FunctionCallOutput(Answer):
    id: str
    type: Literal["function_call_output"] = "function_call_output"
    status: Literal["completed"] = "completed"
    call_id: str
    output: str


class ReasoningText(Answer):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class Reasoning(Answer):
    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus
    summary: list[Json] = Field(default_factory=list)  # the reasoning itself is the content
    content: list[ReasoningText]


OutputItem = OutputMessage | FunctionCall | Reasoning
InputItem = InputMessage | FunctionCall | FunctionCallOutput | Reasoning


# --- the response ---------------------------------------------------------------------------


class ResponseFault(Answer):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(Answer):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(Answer):
    cached_tokens: int
    cache_write_tokens: int = 0  # the cache keeps what was computed anyway


class OutputTokensDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class TextConfig(Answer):
    format: Json
    verbosity: str | MISSING = MISSING


# the defaults are what it has before anything is generated, for a request that says nothing
class GeneratedResponse(Answer):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool = False
    error: ResponseFault | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Json | None = None
    service_tier: Literal["default", "flex"] | MISSING = MISSING
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | Json = "auto"
    tools: list[Json]
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


# --- events ---------------------------------------------------------------------------------


class _Event(Answer):
    sequence_number: int  # from 0, one more with each event


class _OfItem(_Event):
    item_id: str
    output_index: int


class _OfContent(_OfItem):
    content_index: int = 0


class ResponseEvent(_Event):
    """The response as it is when it begins and ends."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: GeneratedResponse


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(_OfContent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDelta(_OfContent):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str
    logprobs: Logprobs


class TextDone(_OfContent):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str
    logprobs: Logprobs


class ReasoningDelta(_OfContent):
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    delta: str


class ReasoningDone(_OfContent):
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    text: str


class ArgumentsDelta(_OfItem):
    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    delta: str


class ArgumentsDone(_OfItem):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
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
