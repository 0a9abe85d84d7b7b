"""Tools in OpenAI's chat, on a model that answers what the test wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from api.openai.fields.tools import MOST_TOOLS
from serving.config import Config
from tests.api.conftest import serving
from tests.support.openai_calls import Json, ask, chat, chunks, is_error
from tests.support.scripted_model import ScriptedModel

PATH = "/v1/chat/completions"
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ADD: Json = {"type": "function", "function": {"name": "add"}}
TOOLS = [WEATHER, ADD]
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
ADDING = '<tool_call>{"name": "add"}</tool_call>'
NAMED = {"type": "function", "function": {"name": "weather"}}


def calls_of(message: Json) -> list[tuple[str, str]]:
    """Also checks their ids."""
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        assert list(call) == ["id", "type", "function"]
        assert (call["type"], call["id"][:5]) == ("function", "call_")
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def accumulated(deltas: list[Json]) -> Json:
    """The message of a stream's deltas, as OpenAI's clients put it together."""
    message: Json = {"content": ""}
    for delta in deltas:
        message["content"] += delta.get("content") or ""
        for piece in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                calls.append({key: piece[key] for key in ("id", "type", "function")})
            else:
                assert list(piece) == ["index", "function"]
                assert list(piece["function"]) == ["arguments"]
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return message


ANSWERS: list[tuple[str, str | None, list[tuple[str, str]], str]] = [
    ("Fine.", "Fine.", [], "stop"),
    (CALL, None, [("weather", PARIS)], "tool_calls"),
    (f"So:\n{CALL}\n{ADDING}", "So:\n", [("weather", PARIS), ("add", "{}")], "tool_calls"),
    (CALL.replace("weather", "rain"), CALL.replace("weather", "rain"), [], "stop"),
    (CALL[:-30], CALL[:-30], [], "stop"),
]


@pytest.mark.parametrize(("answer", "content", "calls", "finish"), ANSWERS)
def test_calls_are_apart_from_the_text_streamed_or_not(
    scripted: FlaskClient,
    model: ScriptedModel,
    answer: str,
    content: str | None,
    calls: list[tuple[str, str]],
    finish: str,
) -> None:
    model.answer = answer
    for choice in chat(scripted, tools=TOOLS, n=2)["choices"]:
        assert choice["finish_reason"] == finish
        assert choice["message"]["content"] == content
        assert calls_of(choice["message"]) == calls
        assert ("tool_calls" in choice["message"]) == bool(calls)
    told = [chunk["choices"][0] for chunk in chunks(scripted, PATH, tools=TOOLS)]
    assert told[0]["delta"] == {"role": "assistant", "content": ""}
    assert told[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}
    message = accumulated([choice["delta"] for choice in told])
    assert (message["content"] or None) == content
    assert calls_of(message) == calls


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_nothing_is_called_where_nothing_is_offered(
    scripted: FlaskClient, model: ScriptedModel, fields: Json
) -> None:
    model.answer = CALL
    told = chat(scripted, **fields)
    assert told["choices"][0]["message"]["content"] == CALL
    assert told["usage"]["prompt_tokens"] == chat(scripted)["usage"]["prompt_tokens"]


def test_without_parallel_calls_the_answer_ends_after_the_first(
    scripted: FlaskClient, model: ScriptedModel
) -> None:
    model.answer = f"{CALL}{ADDING} and more"
    told = chat(scripted, tools=TOOLS, parallel_tool_calls=False)
    (choice,) = told["choices"]
    assert calls_of(choice["message"]) == [("weather", PARIS)]
    assert choice["finish_reason"] == "tool_calls"
    assert told["usage"]["completion_tokens"] == len(CALL.removesuffix("\n</tool_call>"))


def test_an_answer_that_is_too_long_says_so(scripted: FlaskClient, model: ScriptedModel) -> None:
    model.answer = f"{CALL} {ADDING}"
    (choice,) = chat(scripted, tools=TOOLS, max_tokens=len(CALL) + 6)["choices"]
    assert choice["finish_reason"] == "length"
    assert calls_of(choice["message"]) == [("weather", PARIS)]
    assert choice["message"]["content"] == " <tool"


def test_stop_strings_and_logprobs_are_of_all_that_was_generated(
    scripted: FlaskClient, model: ScriptedModel
) -> None:
    model.answer = f"{CALL}{ADDING}"
    (choice,) = chat(scripted, tools=TOOLS, stop="add", logprobs=True, seed=1)["choices"]
    assert calls_of(choice["message"]) == [("weather", PARIS)]
    entries = choice["logprobs"]["content"]
    written = f'{CALL}<tool_call>{{"name": "'
    assert "".join(entry["token"] for entry in entries) == written
    told = chunks(scripted, PATH, tools=TOOLS, stop="add", logprobs=True, seed=1)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in told]
    assert [entry for one in streamed if one for entry in one["content"]] == entries


def test_a_conversation_with_calls_is_written_by_the_template(
    scripted: FlaskClient, model: ScriptedModel
) -> None:
    model.answer = CALL
    message = chat(scripted, tools=TOOLS)["choices"][0]["message"]
    identity = message["tool_calls"][0]["id"]
    messages = [
        {"role": "user", "content": "Weather?"},
        message,
        {"role": "tool", "tool_call_id": identity, "content": [{"type": "text", "text": "rain"}]},
    ]
    told = scripted.post("/chat_tokenize", json={"messages": messages, "tools": TOOLS}).get_json()
    text = told["templated_text"]
    assert text.startswith("System: You may call these functions")
    assert f"Assistant: {CALL}\n" in text
    assert "User: <tool_response>\nrain\n</tool_response>\nAssistant:" in text
    of_vllm = scripted.post("/tokenize", json={"messages": messages, "tools": TOOLS}).get_json()
    assert of_vllm["count"] == len(told["tokenize_response"])
    model.answer = "Rain."
    (choice,) = chat(scripted, messages=messages, tools=TOOLS)["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Rain.", "refusal": None}


def test_the_models_own_template_gets_the_tools(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.answer = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]'
    (tmp_path / "chat_template.jinja").write_text(
        "[TOOL_CALLS]{% for t in tools %}{{ t.function.name }}({{ t.function.description }})"
        "{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    config = Config(mode="dynamic", data_dir=str(tmp_path / "data"), model=str(tmp_path))
    with serving(config, lambda config: model) as client:
        name = client.get("/v1/models").get_json()["data"][0]["id"]
        told = chat(client, model=name, tools=TOOLS)
        assert told["usage"]["prompt_tokens"] == len("[TOOL_CALLS]weather(Of a city.)add()x")
        (call,) = told["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": PARIS}
        assert len(call["id"]) == 9


def test_the_older_shapes_of_tgi_are_accepted(scripted: FlaskClient, model: ScriptedModel) -> None:
    """A function's `arguments` in the place of `parameters`, and of a call as an object."""
    function = {"name": "weather", "arguments": WEATHER["function"]["parameters"]}
    old = chat(scripted, tools=[{"type": "function", "function": function}])["usage"]
    function = {"name": "weather", "parameters": WEATHER["function"]["parameters"]}
    new = chat(scripted, tools=[{"type": "function", "function": function}])["usage"]
    assert old["prompt_tokens"] == new["prompt_tokens"]

    def prompt_tokens(arguments: object) -> int:
        call = {"id": "0", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages: list[Json] = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "0", "content": "5"},
        ]
        return int(chat(scripted, messages=messages, tools=TOOLS)["usage"]["prompt_tokens"])

    assert prompt_tokens({"city": "Paris"}) == prompt_tokens(PARIS)


@pytest.mark.parametrize(
    "choice", ["required", "weather", NAMED, {"function": {"name": "weather"}}]
)
def test_forced_calls_are_streamed_while_they_are_written(
    scripted: FlaskClient, model: ScriptedModel, choice: object
) -> None:
    model.answer = CALL
    fields = {"tools": TOOLS, "tool_choice": choice}
    (whole,) = chat(scripted, **fields)["choices"]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] is None
    assert calls_of(whole["message"]) == [("weather", PARIS)]
    told = [chunk["choices"][0] for chunk in chunks(scripted, PATH, **fields)]
    assert told[-1]["finish_reason"] == "tool_calls"
    assert calls_of(accumulated([choice["delta"] for choice in told])) == [("weather", PARIS)]
    (cut,) = chat(scripted, max_tokens=len(CALL) - 20, **fields)["choices"]
    assert cut["finish_reason"] == "length"
    assert calls_of(cut["message"]) == [("weather", PARIS[:-6])]


def test_calls_stay_possible_beside_a_response_format(
    scripted: FlaskClient, model: ScriptedModel
) -> None:
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    model.answer = CALL
    (choice,) = chat(scripted, tools=TOOLS, response_format=wanted)["choices"]
    assert calls_of(choice["message"]) == [("weather", PARIS)]
    model.answer = "{}"
    (choice,) = chat(scripted, tools=TOOLS, response_format=wanted)["choices"]
    assert choice["message"]["content"] == "{}"
    model.answer = "a/"
    others: list[Json] = [
        {"response_format": {"type": "regex", "value": "a/"}},
        {"guided_choice": ["a/", "b"]},
        {"structured_outputs": {"grammar": 'start: "a" "/"'}},
    ]
    for other in others:
        (choice,) = chat(scripted, tools=TOOLS, **other)["choices"]
        assert choice["message"]["content"] == "a/"


IMPOSSIBLE = {"type": "object", "properties": {"a": False}, "required": ["a"]}


@pytest.mark.parametrize(("choice", "strict"), [("required", False), ("auto", True)])
def test_a_schema_that_cannot_be_served_is_refused(
    scripted: FlaskClient, choice: str, strict: bool
) -> None:
    function = {"name": "f", "parameters": IMPOSSIBLE, "strict": strict}
    tools = [{"type": "function", "function": function}]
    answer = ask(scripted, PATH, tools=tools, tool_choice=choice)
    assert "Unsatisfiable" in is_error(answer, 400, "tools")


def test_arguments_of_a_strict_tool_do_not_wait_for_their_end(
    scripted: FlaskClient, model: ScriptedModel
) -> None:
    model.answer = f"So:\n{CALL}"
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    fields = {"tools": [strict, ADD]}
    (whole,) = chat(scripted, **fields)["choices"]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "So:\n"
    assert calls_of(whole["message"]) == [("weather", PARIS)]
    told = [chunk["choices"][0] for chunk in chunks(scripted, PATH, **fields)]
    assert len([one for one in told if "tool_calls" in one["delta"]]) > 3
    message = accumulated([one["delta"] for one in told])
    assert (message["content"], calls_of(message)) == ("So:\n", [("weather", PARIS)])
    (cut,) = chat(scripted, max_tokens=len(model.answer) - 20, **fields)["choices"]
    assert (cut["finish_reason"], calls_of(cut["message"])) == ("length", [("weather", PARIS[:-6])])


def test_an_answer_calls_only_allowed_tools(scripted: FlaskClient, model: ScriptedModel) -> None:
    model.answer = f"{CALL}{ADDING}"

    def allowed(mode: str) -> Json:
        named = {"type": "function", "function": {"name": "add"}}
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}}
        return {"tools": TOOLS, "tool_choice": choice}

    told = chat(scripted, **allowed("auto"))
    (choice,) = told["choices"]
    assert choice["message"]["content"] == CALL
    assert calls_of(choice["message"]) == [("add", "{}")]
    assert told["usage"]["prompt_tokens"] == chat(scripted, tools=TOOLS)["usage"]["prompt_tokens"]
    model.answer = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    (choice,) = chat(scripted, **allowed("required"))["choices"]
    assert calls_of(choice["message"]) == [("add", "{}")]


def tool(**function: Any) -> Json:
    return {"type": "function", "function": {"name": "f", **function}}


def called(**fields: Any) -> Json:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def nested(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels):
        schema = {"properties": schema}
    return schema


USER: Json = {"role": "user", "content": "x"}
REFUSED: list[tuple[str, Json, str]] = [
    ("tools", {"tools": [tool(name="a b")]}, "64 letters"),
    ("tools", {"tools": [tool(name="x" * 65)]}, "64 letters"),
    ("tools", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "type 'function'"),
    ("tools", {"tools": [tool(parameters={"type": "array"})]}, "type 'object'"),
    ("tools", {"tools": [tool(parameters=[])]}, "a JSON schema"),
    ("tools", {"tools": [tool(parameters=nested(40))]}, "32 deep"),
    ("tools", {"tools": [tool(parameters=nested(400))]}, "32 deep"),
    (
        "tools",
        {"tools": [tool(strict=True, parameters={"patternProperties": {"^a": {"const": 1}}})]},
        "patternProperties cannot be enforced",
    ),
    ("tools", {"tools": [tool(description="x" * 2**18)]}, "262144 characters"),
    ("tools", {"tools": [tool(name=f"f{n}") for n in range(MOST_TOOLS + 1)]}, "up to 128"),
    ("tools", {"tools": [tool(), tool(name="g"), tool()]}, 'each name once, got "f" 2 times'),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "rain"}, 'tools: "weather", "add"'),
    (
        "tool_choice",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rain"}}},
        'got "rain"; tools: "weather", "add"',
    ),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function"}}, "'required'"),
    (
        "tool_choice",
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "rain"}}]},
            },
        },
        'got "rain"; tools: "weather", "add"',
    ),
    ("tool_choice", {"tool_choice": "required"}, "tools: none"),
    ("tool_choice", {"tool_choice": NAMED}, "tools: none"),
    ("parallel_tool_calls", {"parallel_tool_calls": 1}, "true or false"),
    ("messages", {"messages": [{"role": "tool", "content": "5"}]}, "'tool' with tool_call_id"),
    (
        "messages",
        {"messages": [USER, called(), {"role": "tool", "content": "5", "tool_call_id": "2"}]},
        'has its tool_call_id "2"; allowed: "1"',
    ),
    (
        "messages",
        {"messages": [{"role": "tool", "content": "5", "tool_call_id": "2"}]},
        "nothing was called",
    ),
    ("messages", {"messages": [{**called(), "role": "user"}]}, "an assistant's tool_calls"),
    ("messages", {"messages": [{"role": "assistant", "content": None}]}, "null beside"),
    ("messages", {"messages": [USER, called(id=None)]}, "each with id"),
    ("messages", {"messages": [USER, called(function={"name": "f"})]}, "name and arguments"),
    ("messages", {"messages": [{**USER, "tool_call_id": "1"}]}, "'tool' with tool_call_id"),
    ("messages", {"messages": [USER, *[called()] * 3000]}, "4096 messages"),
]


@pytest.mark.parametrize(("param", "fields", "part"), REFUSED)
def test_a_refusal_says_what_is_allowed(
    scripted: FlaskClient, param: str, fields: Json, part: str
) -> None:
    for stream in (False, True):
        assert part in is_error(ask(scripted, PATH, stream=stream, **fields), 400, param)


# of calls: as texts where a template joins them with text, and as objects elsewhere
STYLES = {
    "texts": "{{ '(' + call.function.arguments + ')' }}",
    "objects": "({% for key in call.function.arguments.keys() %}{% endfor %}"
    "{{ call.function.arguments | tojson }})",
}
WRITTEN: list[tuple[object, str]] = [
    ("", "{}"), ("null", "{}"), (None, "{}"), ("[1]", "{}"), ([1], "{}"), ('"x"', "{}"),
    ("{", "{}"), ('{"city": "Par', '{"city": "Par"}'), ('{"n": [1, {"a": tr', '{"n": [1, {}]}'),
    ("rain", "{}"), ("\ud800", "{}"), ("[" * 500, "{}"), (json.dumps(nested(33)), "{}"),
    (PARIS, PARIS), ({"city": "Paris"}, PARIS),
]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_templates_get_objects_whatever_a_model_wrote(style: str, tmp_path: Path) -> None:
    """A client returns it on every API, cut off by `max_tokens` or not."""
    (tmp_path / "chat_template.jinja").write_text(
        "{{ tools }}{% for m in messages %}{% for call in m.tool_calls or [] %}"
        + STYLES[style]
        + "{% endfor %}{% endfor %}<tool_call>"
    )
    config = Config(mode="dynamic", data_dir=str(tmp_path / "data"), model=str(tmp_path))
    with serving(config, lambda config: ScriptedModel()) as client:
        model = client.get("/v1/models").get_json()["data"][0]["id"]
        for arguments, seen in WRITTEN:
            call = {"name": "f", "arguments": arguments}
            conversation = {"model": model, "messages": [USER, called(function=call)]}
            told = client.post("/chat_tokenize", json=conversation).get_json()
            assert told["templated_text"] == f"None({seen})<tool_call>"
            tokens = chat(client, **conversation)["usage"]["prompt_tokens"]
            older = {"role": "assistant", "content": None, "function_call": call}
            usage = chat(client, model=model, messages=[USER, older])["usage"]
            assert usage["prompt_tokens"] == tokens
            item = {"type": "function_call", "call_id": "1", **call}
            body = {"model": model, "input": [USER, item], "store": False}
            responded = client.post("/v1/responses", json=body).get_json()
            assert responded["usage"]["input_tokens"] == tokens
            counted = client.post("/v1/responses/input_tokens", json=body).get_json()
            assert counted == {"object": "response.input_tokens", "input_tokens": tokens}


@pytest.mark.parametrize(
    "fields",
    [
        {"content": None, "refusal": "No."},
        {"content": [{"type": "refusal", "refusal": "No."}]},
        {"content": "No.", "refusal": None, "annotations": [], "audio": None, "tool_calls": None},
    ],
)
def test_a_refusal_in_a_history_is_the_assistants_text(scripted: FlaskClient, fields: Json) -> None:
    """As OpenAI's API returns it, and as SDKs dump it."""
    messages = [USER, {"role": "assistant", **fields}, USER]
    told = scripted.post("/chat_tokenize", json={"messages": messages}).get_json()
    assert "Assistant: No.\nUser: x" in told["templated_text"]
    if fields["content"] is not None:
        items = {"input": [USER, {"type": "message", "role": "assistant", **fields}, USER]}
        counted = scripted.post("/v1/responses/input_tokens", json=items).get_json()
        assert counted["input_tokens"] == len(told["tokenize_response"])
