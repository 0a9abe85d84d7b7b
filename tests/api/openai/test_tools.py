"""Tools and functions in OpenAI's chat, on a model that answers what the test wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from api.openai.fields.tools import MOST_TOOLS
from serving.config import Config
from tests.api.conftest import Says, serving
from tests.support.hash_model import ScriptedModel
from tests.support.openai_calls import (
    CHAT,
    Calls,
    Json,
    ask,
    both,
    calls_of,
    chat,
    chunks,
    is_error,
)
from tests.text.tools.calls import TOOL

ADD: Json = {"type": "function", "function": {"name": "add"}}
TOOLS = [TOOL, ADD]
FUNCTIONS = [tool["function"] for tool in TOOLS]
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
ADDING = '<tool_call>{"name": "add"}</tool_call>'
RAIN = CALL.replace("weather", "rain")
NAMED = {"type": "function", "function": {"name": "weather"}}
USER: Json = {"role": "user", "content": "x"}


def called_by(client: FlaskClient, **fields: Any) -> tuple[str | None, Calls, str]:
    """Content, calls and finish_reason of an answer, which its stream has, too."""
    (choice,) = both(client, CHAT, **fields)["choices"]
    message = choice["message"]
    assert ("tool_calls" in message) == bool(calls_of(message))
    return message["content"], calls_of(message), choice["finish_reason"]


def tokens_of(client: FlaskClient, **fields: Any) -> int:
    return int(chat(client, **fields)["usage"]["prompt_tokens"])


# --- what a model calls ---------------------------------------------------------------------

OFFERED: Json = {"tools": TOOLS}
SCHEMA = {"name": "n", "schema": {"type": "object"}, "strict": True}
ANY_OBJECT = {"type": "json_schema", "json_schema": SCHEMA}
ANSWERS: list[tuple[str, Json, str | None, Calls, str]] = [
    ("Fine.", OFFERED, "Fine.", [], "stop"),
    (CALL, OFFERED, None, [("weather", PARIS)], "tool_calls"),
    (f"So:\n{CALL}\n{ADDING}", OFFERED, "So:\n", [("weather", PARIS), ("add", "{}")], "tool_calls"),
    (RAIN, OFFERED, RAIN, [], "stop"),
    (CALL[:-30], OFFERED, CALL[:-30], [], "stop"),
    (f"{CALL} {ADDING}", {**OFFERED, "max_tokens": len(CALL) + 6}, " <tool", [("weather", PARIS)],
     "length"),
    (CALL, {"tools": []}, CALL, [], "stop"),
    (CALL, {**OFFERED, "tool_choice": "none"}, CALL, [], "stop"),
    (CALL, {"functions": FUNCTIONS}, None, [], "function_call"),
    (CALL, {**OFFERED, "response_format": ANY_OBJECT}, None, [("weather", PARIS)], "tool_calls"),
    ("{}", {**OFFERED, "response_format": ANY_OBJECT}, "{}", [], "stop"),
    ("a/", {**OFFERED, "guided_choice": ["a/", "b"]}, "a/", [], "stop"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "fields", "content", "calls", "finish"), ANSWERS)
def test_calls_are_apart_from_the_text_streamed_or_not(
    says: Says, answer: str, fields: Json, content: str | None, calls: Calls, finish: str
) -> None:
    assert called_by(says(answer), **fields) == (content, calls, finish)
    for choice in chat(says(answer), n=2, **fields)["choices"]:
        assert choice["message"]["content"] == content
        assert calls_of(choice["message"]) == calls


def test_without_parallel_calls_the_answer_ends_after_the_first(says: Says) -> None:
    told = chat(says(f"{CALL}{ADDING} and more"), tools=TOOLS, parallel_tool_calls=False)
    (choice,) = told["choices"]
    assert calls_of(choice["message"]) == [("weather", PARIS)]
    assert choice["finish_reason"] == "tool_calls"
    assert told["usage"]["completion_tokens"] == len(CALL.removesuffix("\n</tool_call>"))


STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}


@pytest.mark.parametrize(
    ("before", "fields"),
    [
        *(
            ("", {"tools": TOOLS, "tool_choice": choice})
            for choice in ("required", "weather", NAMED, {"function": {"name": "weather"}})
        ),
        ("So:\n", {"tools": [STRICT, ADD]}),
    ],
)
def test_arguments_of_forced_and_of_strict_calls_do_not_wait_for_their_end(
    says: Says, before: str, fields: Json
) -> None:
    client = says(before + CALL)
    content = before or None
    assert called_by(client, **fields) == (content, [("weather", PARIS)], "tool_calls")
    told = [chunk["choices"][0]["delta"] for chunk in chunks(client, CHAT, **fields)]
    assert len([delta for delta in told if "tool_calls" in delta]) > 3
    (cut,) = chat(client, max_tokens=len(before + CALL) - 20, **fields)["choices"]
    assert (cut["finish_reason"], calls_of(cut["message"])) == ("length", [("weather", PARIS[:-6])])


def test_an_answer_calls_only_allowed_tools(says: Says) -> None:
    choice: Json = {"mode": "auto", "tools": [ADD]}
    allowed = {"type": "allowed_tools", "allowed_tools": choice}
    fields: Json = {"tools": TOOLS, "tool_choice": allowed}
    client = says(f"{CALL}{ADDING}")
    assert called_by(client, **fields) == (CALL, [("add", "{}")], "tool_calls")
    assert tokens_of(client, **fields) == tokens_of(client, tools=TOOLS)
    choice["mode"] = "required"
    client = says('<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>')
    assert called_by(client, **fields)[1] == [("add", "{}")]


# --- conversations --------------------------------------------------------------------------


def called(**fields: Any) -> Json:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(content: object, id: str = "1") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


def test_a_conversation_with_calls_is_written_by_the_template(says: Says) -> None:
    message = chat(says(CALL), tools=TOOLS)["choices"][0]["message"]
    answered = result([{"type": "text", "text": "rain"}], message["tool_calls"][0]["id"])
    asked = {"messages": [USER, message, answered], "tools": TOOLS}
    client = says("Rain.")
    told = client.post("/chat_tokenize", json=asked).get_json()
    text = told["templated_text"]
    assert text.startswith("System: You may call these functions")
    assert f"Assistant: {CALL}\n" in text
    assert "User: <tool_response>\nrain\n</tool_response>\nAssistant:" in text
    counts = [tokens_of(client, **asked, tool_choice=choice) for choice in ("auto", "none")]
    assert len(told["tokenize_response"]) == counts[0] > counts[1], "only what may be called"


def nested(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels):
        schema = {"properties": schema}
    return schema


TEMPLATE = (
    "{{ tools }}{% for m in messages %}{% for call in m.tool_calls or [] %}"
    "({% for key in call.function.arguments.keys() %}{% endfor %}"
    "{{ call.function.arguments | tojson }}){% endfor %}{% endfor %}<tool_call>"
)
WRITTEN: list[tuple[object, str]] = [
    ("", "{}"), ("null", "{}"), (None, "{}"), ("[1]", "{}"), ([1], "{}"), ('"x"', "{}"),
    ("{", "{}"), ('{"city": "Par', '{"city": "Par"}'), ('{"n": [1, {"a": tr', '{"n": [1, {}]}'),
    ("rain", "{}"), ("\ud800", "{}"), ("[" * 500, "{}"), (json.dumps(nested(33)), "{}"),
    (PARIS, PARIS), ({"city": "Paris"}, PARIS),
]  # fmt: skip


def test_templates_get_objects_whatever_a_model_wrote(tmp_path: Path) -> None:
    """A client returns it on every API, cut off by `max_tokens` or not."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    config = Config("dynamic", data_dir=str(tmp_path / "data"), model=str(tmp_path),
                    served_model_name="embedded")  # fmt: skip
    with serving(config, lambda config: ScriptedModel()) as client:
        for arguments, seen in WRITTEN:
            call = {"name": "f", "arguments": arguments}
            messages = [USER, called(function=call)]
            told = client.post("/chat_tokenize", json={"messages": messages}).get_json()
            assert told["templated_text"] == f"None({seen})<tool_call>"
            tokens = tokens_of(client, messages=messages)
            older = {"role": "assistant", "content": None, "function_call": call}
            assert tokens_of(client, messages=[USER, older]) == tokens
            item = {"type": "function_call", "call_id": "1", **call}
            body = {"model": "embedded", "input": [USER, item], "store": False}
            counted = client.post("/v1/responses/input_tokens", json=body).get_json()
            assert counted == {"object": "response.input_tokens", "input_tokens": tokens}


def test_a_refusal_in_a_history_is_the_assistants_text(says: Says) -> None:
    """As OpenAI's API returns it, and as SDKs dump it."""
    shapes: list[Json] = [
        {"content": None, "refusal": "No."},
        {"content": [{"type": "refusal", "refusal": "No."}]},
        {"content": "No.", "refusal": None, "annotations": [], "audio": None, "tool_calls": None},
    ]
    for fields in shapes:
        messages = [USER, {"role": "assistant", **fields}, USER]
        told = says("x").post("/chat_tokenize", json={"messages": messages}).get_json()
        assert "Assistant: No.\nUser: x" in told["templated_text"]


# --- refusals -------------------------------------------------------------------------------


def tool(**function: Any) -> Json:
    return {"type": "function", "function": {"name": "f", **function}}


UNENFORCEABLE = {"patternProperties": {"^a": {"const": 1}}}
IMPOSSIBLE = {"type": "object", "properties": {"a": False}, "required": ["a"]}
RESULT: Json = {"role": "function", "name": "weather", "content": "rain"}
ALLOWED = {"mode": "auto", "tools": [tool(name="rain")]}
OTHERS = 'got "rain"; tools: "weather", "add"'
# the field that is named, its value, what is said
OF_TOOLS: list[tuple[list[Json], str]] = [
    ([tool(name="x" * 65)], "64 letters"),
    ([{"type": "custom", "custom": {"name": "f"}}], "type 'function'"),
    ([tool(parameters={"type": "array"})], "type 'object'"),
    ([tool(parameters=nested(400))], "32 deep"),
    ([tool(strict=True, parameters=UNENFORCEABLE)], "patternProperties cannot be enforced"),
    ([tool(strict=True, parameters=IMPOSSIBLE)], "Unsatisfiable"),
    ([tool(description="x" * 2**18)], "262144 characters"),
    ([tool(name=f"f{n}") for n in range(MOST_TOOLS + 1)], "up to 128"),
    ([tool(), tool(name="g"), tool()], 'each name once, got "f" 2 times'),
]
OF_CHOICES: list[tuple[object, str]] = [
    ({"type": "function", "function": {"name": "rain"}}, OTHERS),
    ({"type": "function"}, "'required'"),
    ({"type": "allowed_tools", "allowed_tools": ALLOWED}, OTHERS),
]
OF_MESSAGES: list[tuple[list[Json], str]] = [
    ([USER, called(), result("5", "2")], 'has its tool_call_id "2"; allowed: "1"'),
    ([result("5", "2")], "nothing was called"),
    ([{**called(), "role": "user"}], "an assistant's tool_calls"),
    ([{"role": "assistant", "content": None}], "null beside"),
    ([USER, called(id=None)], "each with id"),
    ([{**USER, "tool_call_id": "1"}], "'tool' with tool_call_id"),
    ([USER, *[called()] * 3000], "4096 messages"),
    ([USER, RESULT], "nothing was called"),
    ([USER, {**RESULT, "name": None}], "'function' with name"),
]
REFUSED: list[tuple[str, Json, str]] = [
    *(("tools", {"tools": tools}, said) for tools, said in OF_TOOLS),
    ("tools", {"tools": [tool(parameters=IMPOSSIBLE)], "tool_choice": "required"}, "Unsatisfiable"),
    *(("tool_choice", {"tools": TOOLS, "tool_choice": one}, said) for one, said in OF_CHOICES),
    ("tool_choice", {"tool_choice": NAMED}, "tools: none"),
    *(("messages", {"messages": messages}, said) for messages, said in OF_MESSAGES),
    ("functions", {"functions": FUNCTIONS, "tools": TOOLS}, "only one"),
    ("function_call", {"function_call": {"name": "rain"}}, "functions: none"),
    ("function_call", {"functions": FUNCTIONS, "function_call": "required"}, "'none'"),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields", "part"), REFUSED)
def test_a_refusal_says_what_is_allowed(says: Says, param: str, fields: Json, part: str) -> None:
    for stream in (False, True):
        assert part in is_error(ask(says("x"), CHAT, stream=stream, **fields), 400, param)
