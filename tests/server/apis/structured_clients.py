"""Clients of OpenAI's API, unmodified, that call tools or want an answer of a schema: each returns
the calls that it understood, as (name, arguments)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field

Calls = list[tuple[str, dict[str, Any]]]

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
USER: Any = {"role": "user", "content": "How is the weather in Paris?"}
MODEL = "embedded"


class weather(BaseModel):  # noqa: N801 (clients take its name for the function's)
    """The weather of a city."""

    city: str = Field(description="its name")


def _of(calls: Iterable[Any] | None) -> Calls:
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls or ()]


def _of_stream(chunks: Iterable[Any]) -> Calls:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    reasons = []
    for chunk in chunks:
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or ():
                if call.function.name:
                    names[call.index] = call.function.name
                written = arguments.get(call.index, "")
                arguments[call.index] = written + (call.function.arguments or "")
    assert reasons[-1] == "tool_calls", reasons
    return [(names[index], json.loads(text)) for index, text in arguments.items()]


def _answered(message: Any) -> list[Any]:
    """The conversation after the tool has run."""
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    return [USER, message, result]


def with_openai(url: str) -> list[Calls]:
    from openai import OpenAI, pydantic_function_tool

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions
        first = chat.create(model=MODEL, messages=[USER], tools=[WEATHER])
        message = first.choices[0].message
        second = chat.create(model=MODEL, messages=_answered(message), tools=[WEATHER])
        stream = chat.create(model=MODEL, messages=[USER], tools=[WEATHER], stream=True)
        streamed = _of_stream(stream)
        forced = chat.create(
            model=MODEL, messages=[USER], tools=[WEATHER], tool_choice=NAMED, stream=True
        )
        streamed_forced = _of_stream(forced)
        tool = pydantic_function_tool(weather)
        parsed = chat.parse(model=MODEL, messages=[USER], tools=[tool]).choices[0].message
        city = parsed.tool_calls[0].function.parsed_arguments if parsed.tool_calls else None
        assert isinstance(city, weather)
        with chat.stream(model=MODEL, messages=[USER], tools=[tool]) as events:
            helped = events.get_final_completion().choices[0].message
    return [
        _of(message.tool_calls),
        _of(second.choices[0].message.tool_calls),
        streamed,
        streamed_forced,
        [("weather", city.model_dump())],
        _of(helped.tool_calls),
    ]


def with_huggingface_hub(url: str) -> list[Calls]:
    from huggingface_hub import InferenceClient

    with InferenceClient(base_url=f"{url}/v1") as client:
        first = client.chat_completion([USER], tools=[WEATHER], tool_choice="auto")
        message = first.choices[0].message
        call: Any = (message.tool_calls or [])[0]
        messages = [
            USER,
            {"role": "assistant", "content": message.content, "tool_calls": message.tool_calls},
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        second = client.chat_completion(messages, tools=[WEATHER])
        streamed = _of_stream(client.chat_completion([USER], tools=[WEATHER], stream=True))
        forced = client.chat_completion([USER], tools=[WEATHER], tool_choice="required")
    return [
        *(_of(one.choices[0].message.tool_calls) for one in (first, second, forced)),
        streamed,
    ]


FUNCTION: Any = {"type": "function", **WEATHER["function"]}


def _of_items(response: Any) -> Calls:
    items = [item for item in response.output if item.type == "function_call"]
    return [(item.name, json.loads(item.arguments)) for item in items]


def _result(response: Any) -> list[Any]:
    """What continues a conversation after the tool has run."""
    call_id = response.output[-1].call_id
    return [{"type": "function_call_output", "call_id": call_id, "output": "rain"}]


def with_openai_responses(url: str) -> list[Calls]:
    from openai import OpenAI, pydantic_function_tool

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        make: Any = client.responses.create
        fields: Any = {"model": MODEL, "tools": [FUNCTION]}
        first = make(input=USER["content"], **fields)
        second = make(input=_result(first), previous_response_id=first.id, **fields)
        forced = make(input="x", tool_choice={"type": "function", "name": "weather"}, **fields)
        with client.responses.stream(input="x", **fields) as events:
            streamed = events.get_final_response()
        started = make(input="x", background=True, stream=True, **fields)
        begun: Any = next(iter(started))
        started.close()
        resumed: Any = client.responses.retrieve(begun.response.id, stream=True, starting_after=0)
        *_, last = resumed
        tools: Any = [pydantic_function_tool(weather)]
        parsed = client.responses.parse(input="x", model=MODEL, tools=tools)
    told: list[Any] = [first, second, forced, streamed, last.response]
    objects: list[Any] = [
        item.parsed_arguments for item in parsed.output if item.type == "function_call"
    ]
    assert all(isinstance(city, weather) for city in objects)
    return [*map(_of_items, told), [("weather", city.model_dump()) for city in objects]]


# --- answers of a schema, each as a call of its name ---------------------------------------


def with_openai_format(url: str) -> list[Calls]:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions
        parsed = chat.parse(model=MODEL, messages=[USER], response_format=weather)
        with chat.stream(model=MODEL, messages=[USER], response_format=weather) as events:
            streamed = events.get_final_completion()
    found = [one.choices[0].message.parsed for one in (parsed, streamed)]
    return [[("weather", one.model_dump())] for one in found if one is not None]


def with_huggingface_hub_format(url: str) -> list[Calls]:
    from huggingface_hub import InferenceClient

    wanted: Any = {
        "type": "json_schema",
        "json_schema": {"name": "weather", "schema": weather.model_json_schema(), "strict": True},
    }
    with InferenceClient(base_url=f"{url}/v1") as client:
        answer = client.chat_completion([USER], response_format=wanted)
    return [[("weather", json.loads(answer.choices[0].message.content or ""))]]


CALLING: Mapping[str, Callable[[str], list[Calls]]] = {
    "openai": with_openai,
    "huggingface_hub": with_huggingface_hub,
    "openai_responses": with_openai_responses,
}
OF_SCHEMAS: Mapping[str, Callable[[str], list[Calls]]] = {
    "openai": with_openai_format,
    "huggingface_hub": with_huggingface_hub_format,
}
