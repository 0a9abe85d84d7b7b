"""Clients, unmodified, each with a chat, a stream, a call of a tool and an answer of a schema.

    python clients.py langchain http://127.0.0.1:8500    # where it is installed

The last line of the output is what the client understood, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

MODEL = "smollm2"
KEY = "sk-of-the-proxy-of-this-test"
ASKED = "How is the weather in Paris?"
USER: Any = {"role": "user", "content": ASKED}
LIMITS: Any = {"temperature": 0, "max_tokens": 80}
DESCRIPTION = "The weather of a city."
PARAMETERS: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": DESCRIPTION, "parameters": PARAMETERS},
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}


class Place(BaseModel, extra="forbid"):  # a small model would write many further fields
    city: str = Field(max_length=30)
    kind: Literal["town", "village"] = "town"


@dataclass
class Told:
    chat: str
    stream: list[str]  # its pieces
    tool: tuple[str, Any]  # the name of a function, and its arguments
    schema: Any


def _call(call: Any) -> tuple[str, Any]:
    """Of an OpenAI client's classes, or of those that are like them."""
    arguments = call.function.arguments
    return call.function.name, json.loads(arguments) if isinstance(arguments, str) else arguments


def _like_openais(ask: Callable[..., Any]) -> Told:
    """`ask` is given what a request has beside its prompt."""
    called = ask(tools=[TOOL], tool_choice="required").choices[0].message
    chunks = [chunk.choices[0].delta.content for chunk in ask(stream=True) if chunk.choices]
    return Told(
        ask().choices[0].message.content,
        [content for content in chunks if content],
        _call(called.tool_calls[0]),
        json.loads(ask(response_format=FORMAT).choices[0].message.content),
    )


def with_openai(url: str, key: str = "none", retries: int = 0) -> Told:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries) as client:
        chat = client.chat.completions
        asked: Any = {"model": MODEL, "messages": [USER], **LIMITS}
        parsed: Any = chat.parse(**asked, response_format=Place).choices[0].message.parsed
        told = _like_openais(partial(chat.create, **asked))
        return replace(told, schema=parsed.model_dump())


def with_agents(url: str) -> Told:
    """OpenAI's Agents SDK, whose agents use the Responses API."""
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    called: list[str] = []

    @agents.function_tool  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """The weather of a city."""
        called.append(city)
        return "rain"

    async def ask() -> Told:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)

            def agent(**options: Any) -> Any:
                choice = "required" if "tools" in options else None
                stop = {"stop": "."}  # an answer that is cut off is its error
                settings = agents.ModelSettings(
                    temperature=0, max_tokens=200, tool_choice=choice, extra_body=stop
                )
                return agents.Agent(name="a", model=model, model_settings=settings, **options)

            chat = await agents.Runner.run(agent(), ASKED)
            streamed = agents.Runner.run_streamed(agent(), ASKED)
            pieces = [
                event.data.delta
                async for event in streamed.stream_events()
                if event.type == "raw_response_event"
                and event.data.type == "response.output_text.delta"
            ]
            tool = agent(tools=[weather], tool_use_behavior="stop_on_first_tool")
            await agents.Runner.run(tool, ASKED)
            typed = await agents.Runner.run(agent(output_type=Place), ASKED)
            place = typed.final_output.model_dump()
            return Told(chat.final_output, pieces, ("weather", {"city": called[0]}), place)

    return asyncio.run(ask())


def with_langchain(url: str, **options: Any) -> Told:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, **LIMITS, **options)
    (call, *_) = model.bind_tools([TOOL], tool_choice="any").invoke(ASKED).tool_calls
    place: Any = model.with_structured_output(Place).invoke(ASKED)
    return Told(
        model.invoke(ASKED).text,
        [chunk.text for chunk in model.stream(ASKED) if chunk.text],
        (call["name"], call["args"]),
        place.model_dump(),
    )


def with_langchain_responses(url: str) -> Told:
    return with_langchain(url, use_responses_api=True)


def with_llamaindex(url: str) -> Told:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    options: Any = {"is_chat_model": True, "is_function_calling_model": True, **LIMITS}
    where: Any = {"api_base": f"{url}/v1", "api_key": "none", "timeout": 600.0}
    made = partial(OpenAILike, model=MODEL, **where, **options)
    model = made(max_retries=0)

    def weather(city: str) -> str:
        """The weather of a city."""
        return "rain"

    tool = FunctionTool.from_defaults(weather)
    asked = [ChatMessage(role="user", content=ASKED)]
    called = model.chat_with_tools([tool], ASKED, tool_required=True)
    (call, *_) = model.get_tool_calls_from_response(called)
    formatted = made(should_use_structured_outputs=True)
    return Told(
        model.chat(asked).message.content,
        [part.delta for part in model.stream_chat(asked) if part.delta],
        (call.tool_name, call.tool_kwargs),
        formatted.as_structured_llm(Place).chat(asked).raw.model_dump(),
    )


def with_pydantic_ai(url: str) -> Told:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(f"{url}/v1", api_key="none"))
    agent: Any = Agent(model, model_settings=LIMITS)

    async def stream() -> list[str]:
        async with agent.run_stream(ASKED) as run:
            return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]

    called: Any = Agent(model, output_type=Place, model_settings=LIMITS).run_sync(ASKED).output
    typed: Any = Agent(model, output_type=NativeOutput(Place), model_settings=LIMITS)
    return Told(
        agent.run_sync(ASKED).output,
        asyncio.run(stream()),
        ("weather", called.model_dump()),
        typed.run_sync(ASKED).output.model_dump(),
    )


def with_instructor(url: str) -> Told:
    import instructor
    from openai import OpenAI

    openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": MODEL, "messages": [USER], "max_retries": 0, **LIMITS}

    def ask(mode: Any, wanted: Any = Place, **more: Any) -> Any:
        return instructor.from_openai(openai, mode=mode).create(
            response_model=wanted, **asked, **more
        )

    modes = instructor.Mode
    partial = ask(modes.TOOLS, instructor.Partial[Place], stream=True)
    plain = instructor.from_openai(openai).chat.completions.create(response_model=None, **asked)
    return Told(
        plain.choices[0].message.content,
        [place.model_dump_json() for place in partial],
        ("weather", ask(modes.TOOLS).model_dump()),
        ask(modes.JSON_SCHEMA).model_dump(),
    )


def with_smolagents(url: str) -> Told:
    from smolagents import OpenAIModel, tool
    from smolagents.models import ChatMessage, MessageRole

    @tool  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        return "rain"

    model = OpenAIModel(model_id=MODEL, api_base=f"{url}/v1", api_key="none", **LIMITS)
    asked = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": ASKED}])]
    called = model.generate(asked, tools_to_call_from=[weather])
    typed = model.generate(asked, response_format=FORMAT)
    return Told(
        str(model.generate(asked).content),
        [part.content for part in model.generate_stream(asked) if part.content],
        _call((called.tool_calls or [])[0]),
        json.loads(str(typed.content)),
    )


def with_litellm(url: str) -> Told:
    import litellm

    litellm.telemetry = False
    fields: Any = {"api_base": f"{url}/v1", "api_key": "none", "messages": [USER], **LIMITS}

    def ask(**more: Any) -> Any:
        return litellm.completion(model=f"openai/{MODEL}", **fields, **more)

    try:
        ask(tools=[{**TOOL, "function": {**TOOL["function"], "description": "x " * 9000}}])
    except litellm.ContextWindowExceededError:
        pass  # by which its fallbacks begin
    else:
        raise AssertionError("a prompt beyond the context was taken")
    return _like_openais(ask)


def with_litellm_proxy(url: str) -> Told:
    """Asked by OpenAI's client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": served}],
        "general_settings": {"master_key": KEY},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps(config))  # which is YAML, too
        file.flush()
        command = [str(Path(sys.executable).parent / "litellm"), "--config", file.name]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with subprocess.Popen(command, stdout=sys.stderr) as proxy:
            try:
                # it starts within so many retries
                return with_openai(f"http://127.0.0.1:{port}", KEY, retries=30)
            finally:
                proxy.terminate()


def with_huggingface_hub(url: str) -> Told:
    from huggingface_hub import InferenceClient

    with InferenceClient(base_url=f"{url}/v1") as client:
        return _like_openais(partial(client.chat_completion, [USER], **LIMITS))


def with_text_generation(url: str) -> Told:
    """TGI's own client. It cannot read the last event of a stream of a chat, TGI's either."""
    from text_generation import Client
    from text_generation.types import Grammar, GrammarType, Message, Tool

    client = Client(url, timeout=600)
    asked = [Message(role="user", content=ASKED)]
    pieces = []
    for chunk in client.chat(asked, stream=True, **LIMITS):
        pieces.append(chunk.choices[0].delta.content or "")
        if chunk.choices[0].finish_reason:
            break
    called = client.chat(asked, tools=[Tool(**TOOL)], tool_choice="weather", **LIMITS)
    function = called.choices[0].message.tool_calls[0]["function"]
    grammar = Grammar(type=GrammarType.Json, value=PARAMETERS)
    typed = client.generate(ASKED, max_new_tokens=40, grammar=grammar)
    return Told(
        client.chat(asked, **LIMITS).choices[0].message.content,
        [piece for piece in pieces if piece],
        (function["name"], json.loads(function["arguments"])),
        json.loads(typed.generated_text),
    )


def with_outlines(url: str) -> Told:
    """It knows no tools: a choice stands for one."""
    import outlines
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model: Any = outlines.from_vllm(client, MODEL)
    chosen = model(ASKED, Literal["weather", "news"], **LIMITS)
    assert chosen in ("weather", "news")
    return Told(
        model(ASKED, **LIMITS),
        [piece for piece in model.stream(ASKED, **LIMITS) if piece],
        ("weather", {"city": "Paris"}),
        json.loads(model(ASKED, Place, **LIMITS)),
    )


CLIENTS: dict[str, Callable[[str], Told]] = {
    name.removeprefix("with_"): function
    for name, function in globals().items()
    if name.startswith("with_")
}


def told(name: str, url: str) -> dict[str, Any]:
    """What the client of this name understood."""
    return asdict(CLIENTS[name](url))


if __name__ == "__main__":
    print(json.dumps(told(sys.argv[1], sys.argv[2])))
