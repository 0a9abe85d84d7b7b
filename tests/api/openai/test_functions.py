"""Functions in OpenAI's chat, as they were before there were tools."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.api.openai.test_tools import ADDING, CALL, PARIS, PATH, TOOLS
from tests.support.openai_calls import Json, ask, chat, chunks, is_error
from tests.support.scripted_model import ScriptedModel

FUNCTIONS = [tool["function"] for tool in TOOLS]


@pytest.mark.parametrize("choice", [None, "auto", {"name": "weather"}])
def test_an_answer_has_one_call(
    scripted: FlaskClient, model: ScriptedModel, choice: object
) -> None:
    model.answer = f"{CALL}{ADDING}"
    fields = {"functions": FUNCTIONS, "function_call": choice}
    whole = chat(scripted, **fields)
    ChatCompletion.model_validate(whole)
    (told,) = whole["choices"]
    assert told["finish_reason"] == "function_call"
    call = {"name": "weather", "arguments": PARIS}
    assert told["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": call,
    }
    parts = chunks(scripted, PATH, **fields)
    list(map(ChatCompletionChunk.model_validate, parts))
    deltas = [part["choices"][0]["delta"] for part in parts]
    pieces = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert pieces[0]["name"] == "weather"
    assert "".join(piece["arguments"] for piece in pieces) == PARIS
    assert parts[-1]["choices"][0]["finish_reason"] == "function_call"


def test_a_conversation_is_that_of_tools(scripted: FlaskClient, model: ScriptedModel) -> None:
    model.answer = "Rain."
    user: Json = {"role": "user", "content": "Weather?"}
    called: Json = {"name": "weather", "arguments": PARIS}
    of_functions = [
        user,
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "weather", "content": "rain"},
    ]
    call = {"id": "call00001", "type": "function", "function": called}
    of_tools = [
        user,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "rain"},
    ]
    first = chat(scripted, messages=of_functions, functions=FUNCTIONS)
    second = chat(scripted, messages=of_tools, tools=TOOLS)
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]


USER: Json = {"role": "user", "content": "x"}
RESULT: Json = {"role": "function", "name": "weather", "content": "rain"}


@pytest.mark.parametrize(
    ("param", "fields", "part"),
    [
        ("functions", {"functions": FUNCTIONS, "tools": TOOLS}, "only one"),
        ("functions", {"functions": [FUNCTIONS[0]] * 2}, "each name once"),
        ("functions", {"functions": [{}]}, "up to 128 functions"),
        ("function_call", {"function_call": {"name": "rain"}}, "functions: none"),
        (
            "function_call",
            {"functions": FUNCTIONS, "function_call": {"name": "rain"}},
            'got "rain"; functions: "weather", "add"',
        ),
        ("function_call", {"functions": FUNCTIONS, "function_call": "required"}, "'none'"),
        ("messages", {"messages": [USER, RESULT]}, "nothing was called"),
        ("messages", {"messages": [USER, {**RESULT, "name": None}]}, "'function' with name"),
    ],
)
def test_a_refusal_says_what_is_allowed(
    scripted: FlaskClient, param: str, fields: Json, part: str
) -> None:
    assert part in is_error(ask(scripted, PATH, **fields), 400, param)
