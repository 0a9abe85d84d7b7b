"""The messages of a conversation in OpenAI's API, as clients send them and as templates get
them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    model_validator,
)
from pydantic_core import from_json

from api.http.errors import ApiError, invalid, show
from api.limits import at_most

MOST_MESSAGES = 4096  # the parts of their contents and their calls included
MOST_DEPTH = 32  # of the JSON that a template may write
MOST_NAMED = 2**14
PREDICTION = (
    "an object with type 'content' and content: the expected answer, a string or an array of up to "
    f"{MOST_MESSAGES} parts of type 'text'"
)
MESSAGES = (
    f"an array of 1 to {MOST_MESSAGES} messages, the parts of their contents and their calls "
    "included: role ('system', 'developer', 'user', 'assistant', 'tool' with tool_call_id, or "
    "'function' with name) and content (a string, an array of parts of type 'text', an assistant's "
    "also 'refusal', or null beside an assistant's tool_calls, each with id, type 'function' and "
    "function: name and arguments, or its refusal)"
)

Filled = Annotated[str, Field(min_length=1)]


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class RefusalPart(BaseModel):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def _shallow(arguments: Any) -> Any:
    if nested_deeper(arguments, MOST_DEPTH):
        raise ValueError("nested too deeply")
    return arguments


# JSON, or an object as in older versions of TGI
Arguments = str | Annotated[dict[str, Any] | list[Any], AfterValidator(_shallow)] | None


def _small(names: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(_shallow(names))) > MOST_NAMED:
        raise ValueError("too long")
    return names


TemplateNames = Annotated[
    Annotated[dict[Filled, Any], Field(max_length=64), at_most(64), AfterValidator(_small)] | None,
    Field(
        description="an object of up to 64 names that the model's chat template reads; at most "
        f"{MOST_NAMED} characters of JSON, nested at most {MOST_DEPTH} deep"
    ),
]


class MessageFunction(BaseModel):
    name: Filled
    arguments: Arguments

    def parsed(self) -> dict[str, Any]:
        """As templates get them, which fail for anything but an object. A client returns what a
        model wrote: of a text that was cut off, the object has what is complete."""
        found: Any = self.arguments
        if isinstance(found, str):
            found = _parsed(found)
        is_object = isinstance(found, dict) and not nested_deeper(found, MOST_DEPTH)
        return found if is_object else {}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return from_json(text.encode(errors="replace"), allow_partial="trailing-strings")
    except ValueError:
        return None


class MessageCall(BaseModel):
    id: Filled
    type: Literal["function"] = "function"
    function: MessageFunction

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.parsed()}
        return {"id": self.id, "type": self.type, "function": function}


Content = str | Annotated[list[TextPart], Field(fail_fast=True)]


def text_of(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


class _Message(BaseModel):
    content: str | Sequence[TextPart | RefusalPart] | None
    name: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.content)


class Prediction(BaseModel):
    """What the answer will be for the most part, as where a text is edited."""

    type: Literal["content"]
    content: (
        str
        | Annotated[
            list[TextPart], Field(max_length=MOST_MESSAGES, fail_fast=True), at_most(MOST_MESSAGES)
        ]
    )


class GivenMessage(_Message):
    role: Literal["system", "developer", "user"]
    content: Content
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_call_id: None = None
    function_call: None = None


class AssistantMessage(_Message):
    role: Literal["assistant"]
    content: (
        str
        | Annotated[
            list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]],
            Field(fail_fast=True),
        ]
        | None
    ) = None
    refusal: str | None = None
    reasoning_content: str | None = Field(
        None, validation_alias=AliasChoices("reasoning_content", "reasoning")
    )
    tool_calls: Annotated[list[MessageCall], Field(fail_fast=True)] | None = None
    function_call: MessageFunction | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not (
            self.tool_calls or self.function_call or self.reasoning_content or self.refusal
        ):
            raise ValueError("only a message with calls, reasoning or a refusal may lack a content")
        return self

    @property
    def text(self) -> str:
        return text_of(self.content) or self.refusal or ""

    def calls(self, number: int) -> list[MessageCall]:
        """`number`: of the message; a function's call has no id of its own."""
        if self.function_call is None:
            return self.tool_calls or []
        # as long as Mistral's templates want it
        return [MessageCall(id=f"call{number:05d}", function=self.function_call)]


class ToolMessage(_Message):
    role: Literal["tool"]
    content: Content
    tool_call_id: Filled


class FunctionMessage(_Message):
    """A result, as before there were tools: of the latest call of the function."""

    role: Literal["function"]
    content: Content
    name: Filled


Message = Annotated[
    GivenMessage | AssistantMessage | ToolMessage | FunctionMessage, Field(discriminator="role")
]


def for_template(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Raises ApiError for a result without a call before it."""
    called: dict[str, str] = {}  # the functions, by the ids of their calls
    for number, message in enumerate(messages):
        # `developer` is OpenAI's newer name for what templates know as `system`
        role = "system" if message.role == "developer" else message.role
        written: dict[str, Any] = {"role": role, "content": message.text}
        if message.name is not None:
            written["name"] = message.name
        if isinstance(message, AssistantMessage) and message.reasoning_content is not None:
            written["reasoning_content"] = message.reasoning_content
        if isinstance(message, ToolMessage):
            identity = message.tool_call_id
            if identity not in called:
                raise _no_call("tool", "tool_call_id", identity, list(called))
            written = {"name": called[identity], **written, "tool_call_id": identity}
        elif isinstance(message, FunctionMessage):
            own = [identity for identity, name in called.items() if name == message.name]
            if not own:
                raise _no_call("function", "name", message.name, list(called.values()))
            written |= {"role": "tool", "tool_call_id": own[-1]}
        elif isinstance(message, AssistantMessage) and (calls := message.calls(number)):
            called |= {call.id: call.function.name for call in calls}
            written["tool_calls"] = [call.for_template() for call in calls]
        yield written


def _no_call(role: str, field: str, given: str, known: Sequence[str]) -> ApiError:
    allowed = ", ".join(map(show, known[:8])) or "none, as nothing was called"
    return invalid(
        "messages",
        f"has no call before a message with role '{role}' that has its {field} {show(given)}; "
        f"allowed: {allowed}",
    )


def nested_deeper(value: Any, levels: int) -> bool:
    """Whether a JSON value has arrays or objects within each other beyond so many levels."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(nested_deeper(inner, levels - 1) for inner in value)


def _few_messages(value: Any) -> Any:
    """Counts before anything is checked: 1 MiB of short parts would hold the interpreter's lock for
    a third of a second."""
    messages = [m for m in value if isinstance(m, dict)] if isinstance(value, list) else []
    lists = [message.get(key) for message in messages for key in ("content", "tool_calls")]
    parts = sum(len(found) for found in lists if isinstance(found, list))
    if len(messages) + parts > MOST_MESSAGES:
        raise ValueError("too many messages")
    return value


Messages = Annotated[
    list[Message],
    Field(min_length=1, fail_fast=True, description=MESSAGES),
    BeforeValidator(_few_messages),
]
