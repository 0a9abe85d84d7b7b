"""Conversations with tools, for chat templates that know none, and for those that do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from text.sandbox import to_json

Message = Mapping[str, Any]  # as templates get it; the arguments of its calls are objects
Tool = Mapping[str, Any]

# a model without a form of its own is asked for the most common one
_INSTRUCTION = """\
You may call these functions, each described by a line of JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON, like this:
<tool_call>
{{"name": "function", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The same conversation for a template that knows no tools: the system's message describes
    them, calls are in the assistant's text, and results are the user's."""
    plain = list(_plain(messages))
    if not tools:
        return plain
    offer = _INSTRUCTION.format(tools="\n".join(map(to_json, tools)))
    if plain and plain[0]["role"] == "system":
        first, *rest = plain
        return [{**first, "content": f"{first['content']}\n\n{offer}"}, *rest]
    return [{"role": "system", "content": offer}, *plain]


def _plain(messages: Sequence[Message]) -> Iterator[Message]:
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        if calls := message.get("tool_calls"):
            texts = [message["content"]] if message["content"] else []
            for function in (call["function"] for call in calls):
                call = {name: function[name] for name in ("name", "arguments")}
                texts.append(f"<tool_call>\n{to_json(call)}\n</tool_call>")
            yield {"role": message["role"], "content": "\n".join(texts)}
        else:
            yield message
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def with_arguments_as_text(messages: Sequence[Message]) -> list[Message]:
    """The same conversation for a template that expects the arguments of calls as JSON texts."""
    return [
        {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function, arguments = call["function"], call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return {**call, "function": {**function, "arguments": text}}


EXAMPLE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "its name"}},
            "required": ["city"],
        },
    },
}
_CALL = {"name": "weather", "arguments": {"city": "Paris"}}
EXAMPLE: Sequence[Message] = [
    {"role": "user", "content": "How is the weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": _CALL}],
    },
    {"role": "tool", "content": "fine", "tool_call_id": "abcdefgh1", "name": "weather"},
]


def shows_arguments(rendered: str) -> bool:
    """Whether the example, as a template writes it, has the arguments of its call, in whatever form
    but that of Python, in which a template prints an object that it takes for a text."""
    return "Paris" in rendered and "'city': 'Paris'" not in rendered
