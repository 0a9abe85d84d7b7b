"""The fields of `/v1/responses` in OpenAI's API that are supported.

As in `api.openai.fields.shared`: a known field that is not supported has a type that allows only
values without effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from api.http.errors import ApiError, show
from api.limits import (
    COUNT,
    METADATA,
    TOP_LOGPROBS,
    Count,
    CountOrZero,
    Metadata,
    TopLogprobs,
    at_most,
)
from api.openai.fields.messages import MOST_MESSAGES, Filled, Text
from api.openai.fields.shared import GenerationRequest, StreamOptions, left_out
from api.openai.fields.tools import MOST_TOOLS, NAME

MOST_INCLUDED = 16

ITEMS = ("message", "function_call", "function_call_output")
PARTS = ("input_text", "output_text")
Includable = Literal[  # all but logprobs belong to items that never occur here
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
LOGPROBS: Includable = "message.output_text.logprobs"


class Part(BaseModel):
    type: Literal["input_text", "output_text"]
    text: Text


Content = Text | Annotated[list[Part], Field(fail_fast=True)]


class MessageItem(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Text | None = None


class CallItem(BaseModel):
    type: Literal["function_call"]
    call_id: Filled
    name: Filled
    arguments: Text
    id: Text | None = None


class CallOutputItem(BaseModel):
    type: Literal["function_call_output"]
    call_id: Filled
    output: Content
    id: Text | None = None


Item = MessageItem | CallItem | CallOutputItem


def _kind(item: Any) -> Any:
    return (item.get("type") or "message") if isinstance(item, dict) else item.type


def _few_items(value: Any) -> Any:
    """Counts before anything is checked, as `api.openai.fields.messages` does."""
    if _are_many(value):
        raise ValueError("too many items")
    return value


def _are_many(value: Any) -> bool:
    items = value if isinstance(value, list) else []
    held = [
        item.get(key) for item in items if isinstance(item, dict) for key in ("content", "output")
    ]
    parts = sum(len(one) for one in held if isinstance(one, list))
    return len(items) + parts > MOST_MESSAGES


Items = Annotated[
    list[
        Annotated[
            Annotated[MessageItem, Tag("message")]
            | Annotated[CallItem, Tag("function_call")]
            | Annotated[CallOutputItem, Tag("function_call_output")],
            Discriminator(_kind),
        ]
    ],
    Field(min_length=1, fail_fast=True),
]


class TextFormat(BaseModel):
    """What of it is valid is decided as for `response_format` of a chat."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema"]


class TextOptions(BaseModel):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Tool(BaseModel):
    """A function; its schema is checked as that of a chat's."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=NAME)]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(BaseModel):
    type: Literal["function"]
    name: Filled


class AllowedChoice(BaseModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


class EventOptions(StreamOptions):
    include_obfuscation: bool | None = None  # further characters that hide lengths: none are sent


class ResponseRequest(GenerationRequest):
    """What `/v1/responses` shares with the other two paths, vLLM's fields included, means the
    same."""

    input: Annotated[Filled | Items, BeforeValidator(_few_items)] = Field(
        description=f"a string, or an array of 1 to {MOST_MESSAGES} items, the parts of their "
        f"contents included: types {', '.join(ITEMS)}, with a text or parts of types "
        f"{' or '.join(PARTS)}"
    )
    instructions: Text | None = Field(None, description="a string")
    previous_response_id: Filled | None = Field(None, description="the id of a stored response")
    store: bool | None = Field(None, description="true or false; true by default")
    background: bool | None = Field(None, description="true or false")
    max_output_tokens: Count | None = Field(None, description=COUNT)
    metadata: Metadata | None = Field(None, description=METADATA)
    text: TextOptions | None = Field(
        None, description="an object with format: type 'text', 'json_object' or 'json_schema'"
    )
    tools: (
        Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True), at_most(MOST_TOOLS)]
        | None
    ) = Field(
        None,
        description=f"an array of up to {MOST_TOOLS} tools of type 'function', each with a name "
        "(up to 64 letters, digits, '_' and '-')",
    )
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | AllowedChoice | None = Field(
        None,
        description="'none', 'auto', 'required', an object with type 'function' and a name, or one "
        "with type 'allowed_tools', mode ('auto' or 'required') and tools",
    )
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    top_logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    include: Annotated[list[Includable], Field(max_length=MOST_INCLUDED, fail_fast=True)] | None = (
        Field(None, description=f"an array of {', '.join(get_args(Includable))}")
    )
    truncation: Literal["auto", "disabled"] | None = Field(None, description="'auto' or 'disabled'")
    stream_options: EventOptions | None = Field(
        None, description="an object with include_obfuscation: true or false"
    )
    # of tools that OpenAI runs, of which there are none
    max_tool_calls: CountOrZero | None = Field(None, description=COUNT)

    n: Literal[1] | None = left_out()
    response_format: None = Field(None, description="left out: it is 'text' here")
    conversation: None = left_out()
    prompt: None = left_out()
    reasoning: None = left_out()
    context_management: None = left_out()
    moderation: None = left_out()

    @property
    def alternatives(self) -> int | None:
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None


def refuse_by_name(data: dict[str, Any]) -> None:
    """Raises ApiError for tools, items and parts of types that are not supported, of which the
    schema could only say that they are none of its own; it says so where there are too many."""
    for tool in _objects(data.get("tools"))[:MOST_TOOLS]:
        _require(tool, "tools", ("function",))
    if _are_many(data.get("input")):
        return
    for item in _objects(data.get("input")):
        _require(item, "input", ITEMS, fallback="message")
        for key in ("content", "output"):
            for part in _objects(item.get(key)):
                _require(part, "input", PARTS)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _require(
    found: dict[str, Any], field: str, allowed: tuple[str, ...], *, fallback: str | None = None
) -> None:
    kind = found.get("type") or fallback
    if isinstance(kind, str) and kind not in allowed:
        raise ApiError(
            400,
            f"field '{field}': type {show(kind)} is not supported; allowed: "
            + ", ".join(map(show, allowed)),
            param=field,
        )
