"""The fields of `/v1/responses` in OpenAI's API that are supported.

As in `api.openai.fields.schemas`: a known field that is not supported has a type that allows only
values without effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from api import limits
from api.openai.fields.messages import (
    MOST_MESSAGES,
    Arguments,
    Filled,
    RefusalPart,
    TemplateNames,
)
from api.openai.fields.schemas import GenerationRequest, StreamOptions, Verbosity, left_out
from api.openai.fields.tools import MOST_NAME, MOST_TOOLS, NAME

MOST_INCLUDED = 16

ITEMS = ("message", "function_call", "function_call_output", "reasoning")
PARTS = ("input_text", "output_text", "refusal")
TOOLS = ("function", "namespace")
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


class MessagePart(BaseModel):
    type: Literal["input_text", "output_text"]
    text: str


Content = (
    str
    | Annotated[
        list[Annotated[MessagePart | RefusalPart, Field(discriminator="type")]],
        Field(fail_fast=True),
    ]
)


class MessageItem(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None


class CallItem(BaseModel):
    type: Literal["function_call"]
    call_id: Filled
    name: Filled
    namespace: Filled | None = None
    arguments: Arguments
    id: str | None = None


class CallOutputItem(BaseModel):
    """Codex also sends outputs that no call asked for."""

    type: Literal["function_call_output"]
    call_id: Filled | None = None
    output: Content
    id: str | None = None


class Thought(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BaseModel):
    """What other servers encrypt, or summarise, is nothing to this model."""

    type: Literal["reasoning"]
    content: Annotated[list[Thought], Field(fail_fast=True)] | None = None
    id: str | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem


def _few_items(value: Any) -> Any:
    """Counts before anything is checked, as `api.openai.fields.messages` does."""
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    lists = [item.get(key) for item in items for key in ("content", "output")]
    parts = sum(len(found) for found in lists if isinstance(found, list))
    if isinstance(value, list) and len(value) + parts > MOST_MESSAGES:
        raise ValueError("too many items")
    return value


def _typed(item: Any) -> Any:
    untyped = isinstance(item, dict) and not item.get("type")
    return {**item, "type": "message"} if untyped else item


Items = Annotated[
    list[Annotated[Item, Field(discriminator="type"), BeforeValidator(_typed)]],
    Field(min_length=1, fail_fast=True),
]


class OutputFormat(BaseModel):
    """What of it is valid is decided as for `response_format` of a chat."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema"]


class TextOptions(BaseModel):
    format: OutputFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(BaseModel):
    effort: str | None = None
    summary: str | None = None  # none is made: the reasoning itself is shown


class FunctionTool(BaseModel):
    """A function; its schema is checked as that of a chat's."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OtherTool(BaseModel):
    """One that a server may run. It is left out: a model need not call it."""

    type: Filled


def _kind_of_tool(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in TOOLS else "other"


_Function = Annotated[FunctionTool, Tag("function")]
_Other = Annotated[OtherTool, Tag("other")]


class Namespace(BaseModel):
    """Functions, as Codex groups them; models know no such groups."""

    type: Literal["namespace"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    tools: Annotated[
        list[Annotated[_Function | _Other, Discriminator(_kind_of_tool)]],
        Field(max_length=MOST_TOOLS, fail_fast=True),
    ]


def name_in(namespace: str | None, name: str) -> str:
    """A function's name for the model."""
    return name if namespace is None else f"{namespace}__{name}"[-MOST_NAME:]


class ToolChoice(BaseModel):
    type: Literal["function"]
    name: Filled
    namespace: Filled | None = None


class AllowedFunctions(BaseModel):
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
        f"{', '.join(PARTS)}"
    )
    instructions: str | None = Field(None, description="a string")
    previous_response_id: Filled | None = Field(None, description="the id of a stored response")
    store: bool | None = Field(None, description="true or false; true by default")
    background: bool | None = Field(None, description="true or false")
    max_output_tokens: limits.Count | None = Field(None, description=limits.COUNT)
    metadata: limits.Metadata | None = Field(None, description=limits.METADATA)
    text: TextOptions | None = Field(
        None,
        description="an object with format: type 'text', 'json_object' or 'json_schema'; and "
        "verbosity: 'low', 'medium' or 'high'",
    )
    tools: (
        Annotated[
            list[
                Annotated[
                    _Function | Annotated[Namespace, Tag("namespace")] | _Other,
                    Discriminator(_kind_of_tool),
                ]
            ],
            Field(max_length=MOST_TOOLS, fail_fast=True),
            limits.at_most(MOST_TOOLS),
        ]
        | None
    ) = Field(
        None,
        description=f"an array of up to {MOST_TOOLS} tools of type 'function', each with a name "
        "(up to 64 letters, digits, '_' and '-'), or 'namespace', with a name and such tools; "
        "those of other types are left out",
    )
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | AllowedFunctions | None = Field(
        None,
        description="'none', 'auto', 'required', an object with type 'function' and a name, or one "
        "with type 'allowed_tools', mode ('auto' or 'required') and tools",
    )
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    top_logprobs: limits.TopLogprobs | None = Field(None, description=limits.TOP_LOGPROBS)
    include: Annotated[list[Includable], Field(max_length=MOST_INCLUDED, fail_fast=True)] | None = (
        Field(None, description=f"an array of {', '.join(get_args(Includable))}")
    )
    reasoning: ReasoningOptions | None = Field(
        None, description="an object with effort and summary: strings"
    )
    chat_template_kwargs: TemplateNames = None
    truncation: Literal["auto", "disabled"] | None = Field(None, description="'auto' or 'disabled'")
    stream_options: EventOptions | None = Field(
        None, description="an object with include_obfuscation: true or false"
    )
    # of tools that OpenAI runs, of which there are none
    max_tool_calls: limits.CountOrZero | None = Field(None, description=limits.COUNT)

    n: Literal[1] | None = left_out()
    response_format: None = Field(None, description="left out: it is 'text' here")
    conversation: None = left_out()
    prompt: None = left_out()
    context_management: None = left_out()
    moderation: None = left_out()

    @property
    def alternatives(self) -> int | None:
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    @property
    def functions(self) -> list[tuple[str | None, FunctionTool]]:
        """Each with its namespace."""
        return [(space, tool) for space, tool in self._flat if isinstance(tool, FunctionTool)]

    @property
    def left_out(self) -> set[str]:
        """The types of other tools."""
        return {tool.type for _, tool in self._flat if isinstance(tool, OtherTool)}

    @property
    def _flat(self) -> Iterator[tuple[str | None, FunctionTool | OtherTool]]:
        for tool in self.tools or ():
            if isinstance(tool, Namespace):
                yield from ((tool.name, one) for one in tool.tools)
            else:
                yield None, tool
