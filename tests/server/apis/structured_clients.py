"""Clients of OpenAI's API, unmodified, that call tools or want an answer of a schema: each returns
the calls that it understood, as (name, arguments).

    python structured_clients.py calling langchain http://127.0.0.1:8500    # where it is installed
"""

from __future__ import annotations

import json
import sys
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


def with_langchain(url: str, **options: Any) -> list[Calls]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, **options)
    bound = model.bind_tools([weather])
    user = HumanMessage(USER["content"])
    first = bound.invoke([user])
    result = ToolMessage("rain", tool_call_id=first.tool_calls[0]["id"])
    second = bound.invoke([user, first, result])
    streamed: Any = None
    for chunk in bound.stream([user]):
        streamed = chunk if streamed is None else streamed + chunk
    any_tool = model.bind_tools([weather], tool_choice="any").invoke([user])
    return [
        [(call["name"], call["args"]) for call in message.tool_calls]
        for message in (first, second, streamed, any_tool)
    ]


def with_langchain_structured(url: str) -> list[Calls]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL)
    city: Any = model.with_structured_output(weather, method="function_calling").invoke("x")
    assert isinstance(city, weather)
    return [[("weather", city.model_dump())]]


def with_instructor(url: str) -> list[Calls]:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    city = client.create(model=MODEL, messages=[USER], response_model=weather, max_retries=0)
    return [[("weather", city.model_dump())]]


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


def with_langchain_responses(url: str) -> list[Calls]:
    return with_langchain(url, use_responses_api=True)


def with_litellm_responses(url: str) -> list[Calls]:
    import litellm

    litellm.telemetry = False
    fields: Any = {
        "model": f"openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "tools": [FUNCTION],
    }
    first = litellm.responses(input=USER["content"], **fields)
    user = {"role": "user", "content": USER["content"]}
    call = first.output[-1].model_dump(include={"type", "call_id", "name", "arguments"})
    second = litellm.responses(input=[user, call, *_result(first)], **fields)
    *_, last = litellm.responses(input="x", stream=True, **fields)
    forced = litellm.responses(input="x", tool_choice="required", **fields)
    return [*map(_of_items, (first, second, forced, last.response))]


def with_litellm(url: str) -> list[Calls]:
    import litellm

    litellm.telemetry = False
    fields: Any = {
        "model": f"openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "tools": [WEATHER],
    }
    message = litellm.completion(messages=[USER], **fields).choices[0].message
    second = litellm.completion(messages=_answered(message), **fields).choices[0].message
    streamed = _of_stream(litellm.completion(messages=[USER], stream=True, **fields))
    forced = litellm.completion(messages=[USER], tool_choice="required", **fields)
    return [
        *(_of(one.tool_calls) for one in (message, second, forced.choices[0].message)),
        streamed,
    ]


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


def with_langchain_format(url: str, **options: Any) -> list[Calls]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, **options)
    city: Any = model.with_structured_output(weather).invoke("x")
    return [[("weather", city.model_dump())]]


def with_langchain_responses_format(url: str) -> list[Calls]:
    return with_langchain_format(url, use_responses_api=True)


def with_litellm_format(url: str) -> list[Calls]:
    import litellm

    answer = litellm.completion(
        model=f"openai/{MODEL}",
        api_base=f"{url}/v1",
        api_key="none",
        messages=[USER],
        response_format=weather,
    )
    return [[("weather", json.loads(answer.choices[0].message.content))]]


CALLING: Mapping[str, Callable[[str], list[Calls]]] = {
    "openai": with_openai,
    "huggingface_hub": with_huggingface_hub,
    "openai_responses": with_openai_responses,
    "langchain": with_langchain,
    "langchain_responses": with_langchain_responses,
    "langchain_structured": with_langchain_structured,
    "litellm": with_litellm,
    "litellm_responses": with_litellm_responses,
    "instructor": with_instructor,
}
OF_SCHEMAS: Mapping[str, Callable[[str], list[Calls]]] = {
    "openai": with_openai_format,
    "huggingface_hub": with_huggingface_hub_format,
    "langchain": with_langchain_format,
    "langchain_responses": with_langchain_responses_format,
    "litellm": with_litellm_format,
}

if __name__ == "__main__":
    kind, name, url = sys.argv[1:]
    clients = CALLING if kind == "calling" else OF_SCHEMAS
    print(json.dumps(clients[name](url)))
