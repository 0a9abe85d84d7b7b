"""Items of a conversation: as clients send them, as they are stored, and as messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import MISSING

from api.openai.fields.messages import RefusalPart
from api.responses.schemas import CallItem, Item, MessageItem, Part, ReasoningItem, name_in
from api.responses.shapes import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    InputText,
    OutputItem,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    new_id,
)

Message = dict[str, Any]  # of `/v1/chat/completions`


def stored_items(sent: str | Sequence[Item]) -> list[InputItem]:
    """A response's input with an id for each item."""
    if isinstance(sent, str):
        sent = [MessageItem(role="user", content=sent)]
    return [_stored(item) for item in sent]


def _stored(item: Item) -> InputItem:
    if isinstance(item, MessageItem):
        parts = [item.content] if isinstance(item.content, str) else item.content
        content = [_part(item.role, part) for part in parts]
        return InputMessage(id=item.id or new_id("msg"), role=item.role, content=content)
    if isinstance(item, ReasoningItem):
        thoughts = [ReasoningText(text=part.text) for part in item.content or ()]
        return Reasoning(id=item.id or new_id("rs"), status="completed", content=thoughts)
    if isinstance(item, CallItem):
        return FunctionCall(
            id=item.id or new_id("fc"),
            status="completed",
            call_id=item.call_id,
            name=item.name,
            namespace=MISSING if item.namespace is None else item.namespace,
            arguments=item.arguments
            if isinstance(item.arguments, str)
            else json.dumps(item.arguments),
        )
    output = item.output
    if not isinstance(output, str):
        output = "".join(part.text for part in output)
    return FunctionCallOutput(id=item.id or new_id("fco"), call_id=item.call_id, output=output)


def _part(role: str, part: str | Part | RefusalPart) -> InputText | OutputText | Refusal:
    if isinstance(part, RefusalPart):
        return Refusal(refusal=part.refusal)
    text = part if isinstance(part, str) else part.text
    return OutputText(text=text) if role == "assistant" else InputText(text=text)


def messages_of(items: Iterable[InputItem | OutputItem]) -> list[Message]:
    """Calls belong to the assistant's message before them, or to one without a text; reasoning to
    what follows it."""
    messages: list[Message] = []
    reasoning: Message = {}
    for item in items:
        if isinstance(item, Reasoning):
            reasoning = {"reasoning_content": "".join(part.text for part in item.content)}
        elif isinstance(item, InputMessage | OutputMessage):
            own = reasoning if item.role == "assistant" else {}
            text = "".join(part.text for part in item.content)
            messages.append({"role": item.role, "content": text, **own})
            reasoning = {}
        elif isinstance(item, FunctionCall):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None, **reasoning})
                reasoning = {}
            namespace = None if item.namespace is MISSING else item.namespace
            function = {"name": name_in(namespace, item.name), "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
    return messages
