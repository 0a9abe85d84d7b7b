"""Clients, unmodified, each with a chat, a stream, a call of a tool and an answer of a schema.

    python clients.py openai http://127.0.0.1:8500    # where it is installed

The last line of the output is what the client understood, as JSON.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
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


def _pieces(chunks: Iterable[Any]) -> list[str]:
    return [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]


def with_openai(url: str, key: str = "none") -> Told:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        chat = client.chat.completions
        asked: Any = {"model": MODEL, "messages": [USER], **LIMITS}
        called = chat.create(**asked, tools=[TOOL], tool_choice="required")
        parsed: Any = chat.parse(**asked, response_format=Place).choices[0].message.parsed
        return Told(
            chat.create(**asked).choices[0].message.content,
            _pieces(chat.create(**asked, stream=True)),
            _call(called.choices[0].message.tool_calls[0]),
            parsed.model_dump(),
        )


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
                _wait(f"http://127.0.0.1:{port}/health/liveliness", proxy)
                return with_openai(f"http://127.0.0.1:{port}", KEY)
            finally:
                proxy.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


def with_huggingface_hub(url: str) -> Told:
    from huggingface_hub import InferenceClient

    with InferenceClient(base_url=f"{url}/v1") as client:

        def ask(**more: Any) -> Any:
            return client.chat_completion([USER], **LIMITS, **more)

        called = ask(tools=[TOOL], tool_choice="required").choices[0].message
        return Told(
            ask().choices[0].message.content,
            _pieces(ask(stream=True)),
            _call(called.tool_calls[0]),
            json.loads(ask(response_format=FORMAT).choices[0].message.content),
        )


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
