"""Items of a conversation: as clients send them, as they are stored, and as messages of a chat."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from api.openai.fields.messages import RefusalPart
from api.responses.schemas import CallItem, Item, MessageItem, Part, ReasoningItem, name_in
from api.responses.shapes import (
    FunctionCall,
    InputItem,
    InputText,
    OutputItem,
    OutputText,
    ReasoningText,
    Refusal,
)

Message = dict[str, Any]  # of `/v1/chat/completions`


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def stored_items(sent: str | Sequence[Item]) -> list[InputItem]:
    """A response's input with an id for each item."""
    if isinstance(sent, str):
        sent = [MessageItem(role="user", content=sent)]
    return [_stored(item) for item in sent]


def _stored(item: Item) -> InputItem:
    if isinstance(item, MessageItem):
        return {
            "id": item.id or new_id("msg"),
            "type": "message",
            "status": "completed",
            "role": item.role,
            "content": [_part(item.role, part) for part in _parts(item.content)],
        }
    if isinstance(item, ReasoningItem):
        return {
            "id": item.id or new_id("rs"),
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [thought(part.text) for part in item.content or ()],
        }
    if isinstance(item, CallItem):
        call: FunctionCall = {
            "id": item.id or new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": item.arguments
            if isinstance(item.arguments, str)
            else json.dumps(item.arguments),
        }
        return call if item.namespace is None else {**call, "namespace": item.namespace}
    return {
        "id": item.id or new_id("fco"),
        "type": "function_call_output",
        "status": "completed",
        "call_id": item.call_id,
        "output": "".join(
            part if isinstance(part, str) else part.text for part in _parts(item.output)
        ),
    }


def _parts(content: str | Sequence[Part | RefusalPart]) -> Sequence[str | Part | RefusalPart]:
    return [content] if isinstance(content, str) else content


def _part(role: str, part: str | Part | RefusalPart) -> InputText | OutputText | Refusal:
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.refusal}
    text = part if isinstance(part, str) else part.text
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def thought(text: str) -> ReasoningText:
    return {"type": "reasoning_text", "text": text}


def messages_of(items: Iterable[InputItem | OutputItem]) -> list[Message]:
    """Calls belong to the assistant's message before them, or to one without a text; reasoning to
    what follows it."""
    messages: list[Message] = []
    reasoning: Message = {}
    for item in items:
        if item["type"] == "reasoning":
            reasoning = {"reasoning_content": "".join(part["text"] for part in item["content"])}
        elif item["type"] == "message":
            text = "".join(
                part["refusal"] if part["type"] == "refusal" else part["text"]
                for part in item["content"]
            )
            own = reasoning if item["role"] == "assistant" else {}
            messages.append({"role": item["role"], "content": text, **own})
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


def as_json(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()
