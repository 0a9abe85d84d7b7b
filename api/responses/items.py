"""Items of a conversation: as they are stored and sent, made of what clients send, and as messages
of a chat. A field of type MISSING is left out where it does not apply."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import MISSING, Field, SkipValidation

from api.openai.fields.messages import RefusalPart
from api.openai.forms import ChatToken
from api.openapi import Answer
from api.responses.schemas import (
    CallOutputItem,
    Item,
    MessageItem,
    MessagePart,
    ReasoningItem,
    name_in,
)

Json = dict[str, Any]
Message = Json  # of `/v1/chat/completions`

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Logprobs = SkipValidation[list[ChatToken]]  # there may be many to a token


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


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
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


def stored_items(sent: str | Sequence[Item]) -> list[Json]:
    """A response's input as it is stored: each of an InputItem's types, with an id."""
    if isinstance(sent, str):
        sent = [MessageItem(role="user", content=sent)]
    return [_stored(item) for item in sent]


def _stored(item: Item) -> Json:
    made = item.model_dump(exclude_none=True)
    if isinstance(item, CallOutputItem):
        if not isinstance(item.output, str):
            made["output"] = "".join(part.text for part in item.output)
        if item.call_id is None:  # a template has a place for outputs of calls alone
            parts = [_part("user", made["output"])]
            made = {"type": "message", "role": "user", "content": parts}
    elif isinstance(item, MessageItem):
        sent = [item.content] if isinstance(item.content, str) else item.content
        made["content"] = [_part(item.role, part) for part in sent]
    elif isinstance(item, ReasoningItem):
        made = {"summary": [], "content": [], **made}
    elif not isinstance(item.arguments, str):
        made["arguments"] = json.dumps(item.arguments)
    id = made.get("id") or new_id(PREFIXES[made["type"]])
    return {**made, "id": id, "status": "completed"}


def _part(role: str, part: str | MessagePart | RefusalPart) -> Json:
    if isinstance(part, RefusalPart):
        return Refusal(refusal=part.refusal).model_dump()
    text = part if isinstance(part, str) else part.text
    kind = OutputText if role == "assistant" else InputText
    return kind(text=text).model_dump()


def messages_of(items: Iterable[Json]) -> list[Message]:
    """Of items as they are stored. Calls belong to the assistant's message before them, or to one
    without a text; reasoning to what follows it."""
    messages: list[Message] = []
    reasoning: Message = {}
    for item in items:
        if item["type"] == "reasoning":
            reasoning = {"reasoning_content": "".join(part["text"] for part in item["content"])}
        elif item["type"] == "message":
            own = reasoning if item["role"] == "assistant" else {}
            texts = [
                part["refusal" if part["type"] == "refusal" else "text"] for part in item["content"]
            ]
            messages.append({"role": item["role"], "content": "".join(texts), **own})
            reasoning = {}
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None, **reasoning})
                reasoning = {}
            name = name_in(item.get("namespace"), item["name"])
            function = {"name": name, "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append(
                {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            )
    return messages
