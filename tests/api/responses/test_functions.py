"""Functions in the Responses API, on a model that answers what the test wants."""

from __future__ import annotations

import pytest

from tests.api.conftest import Says
from tests.api.openai.test_tools import ADDING, CALL, PARIS, WEATHER
from tests.api.responses.test_responses import Json, ask, both, events, respond
from tests.support.openai_calls import alike, is_error

TOOLS: list[Json] = [
    {"type": "function", **WEATHER["function"]},
    {"type": "function", "name": "add"},
]


ANSWERS: list[tuple[str, list[tuple[str, str]]]] = [
    ("Fine.", [("message", "Fine.")]),
    (CALL, [("weather", PARIS)]),
    (f"So:\n{CALL}\n{ADDING}", [("message", "So:\n"), ("weather", PARIS), ("add", "{}")]),
    (f"é {CALL} é", [("message", "é "), ("weather", PARIS), ("message", " é")]),
]


def shown(response: Json) -> list[tuple[str, str]]:
    return [
        ("message", item["content"][0]["text"])
        if item["type"] == "message"
        else (item["name"], item["arguments"])
        for item in response["output"]
    ]


@pytest.mark.parametrize(("answer", "output"), ANSWERS)
def test_calls_are_items_streamed_or_not(
    says: Says, answer: str, output: list[tuple[str, str]]
) -> None:
    """The logprobs of a message are those of its own text."""
    for scores in ([], ["message.output_text.logprobs"]):
        whole = both(says(answer), tools=TOOLS, include=scores, seed=1)
        assert shown(whole) == output
        assert {item["status"] for item in whole["output"]} == {"completed"} == {whole["status"]}
        for item in whole["output"]:
            for part in item.get("content", ()):
                held = [byte for token in part["logprobs"] for byte in token["bytes"]]
                assert bytes(held).decode() == (part["text"] if scores else "")


def test_a_call_that_is_cut_off_is_incomplete(says: Says) -> None:
    client = says(CALL)
    for n in range(len('<tool_call>\n{"name": "weather", "arguments": {"ci'), len(CALL) - 20):
        told = respond(client, tools=TOOLS, max_output_tokens=n)
        assert told["status"] == "incomplete"
        assert {item["status"] for item in told["output"]} == {"incomplete"}


def test_the_result_of_a_call_continues_the_conversation(says: Says) -> None:
    client = says(f"So:\n{CALL}")
    called = respond(client, tools=TOOLS, store=True)
    call = called["output"][-1]
    client = says("Rain.")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    fields: Json = {"tools": TOOLS, "seed": 1}
    stored = respond(client, previous_response_id=called["id"], input=[result], **fields)
    assert shown(stored) == [("message", "Rain.")]
    kept = [{"role": "user", "content": "x"}, *called["output"], result]
    sent = respond(client, input=kept, **fields)
    assert sent["usage"]["input_tokens"] == stored["usage"]["input_tokens"]
    own = {"previous_response_id": None}
    assert alike({**stored, **own}) == alike(sent)
    answer = ask(client, input=[{**result, "call_id": "call_none"}], **fields)
    assert "call_none" in is_error(answer, 400, "input")


def test_a_choice_of_a_function_that_is_not_offered_is_named(says: Says) -> None:
    choice = {"type": "function", "name": "rain"}
    answer = ask(says("x"), tools=TOOLS, tool_choice=choice)
    assert '"rain"' in is_error(answer, 400, "tool_choice")


def test_an_answer_calls_only_allowed_functions(says: Says) -> None:
    client = says(f"{CALL}{ADDING}")
    tools = [{"type": "function", "name": "add"}]
    choice: Json = {"type": "allowed_tools", "mode": "auto", "tools": tools}
    told = respond(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert shown(told) == [("message", CALL), ("add", "{}")]
    assert (told["tool_choice"], told["parallel_tool_calls"]) == (choice, False)
    assert [tool["name"] for tool in told["tools"]] == ["weather", "add"]


def test_what_codex_sends_is_taken(says: Says, caplog: pytest.LogCaptureFixture) -> None:
    """Functions in a namespace reach the model by a longer name and the client by its own; a tool
    that a server may leave out is left out."""
    client = says('<tool_call>\n{"name": "spawn__add", "arguments": {}}\n</tool_call>')
    space = {"type": "namespace", "name": "spawn", "description": "d", "tools": [TOOLS[1]]}
    search = {"type": "web_search", "external_web_access": False}
    fields: Json = {"tools": [*TOOLS, space, search], "reasoning": {}, "store": True}
    called = respond(client, **fields)
    (call,) = called["output"]
    assert (call["namespace"], call["name"], call["arguments"]) == ("spawn", "add", "{}")
    assert [tool["type"] for tool in called["tools"]] == ["function", "function", "namespace"]
    assert 'tools of type "web_search": left out' in caplog.text
    added = next(e for e in events(client, **fields) if e["type"] == "response.output_item.added")
    assert added["item"].items() >= {"namespace": "spawn", "name": "add"}.items()
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    kept = [{"role": "user", "content": "x"}, call, result]
    sent = respond(client, input=kept, **fields)
    stored = respond(client, previous_response_id=called["id"], input=[result], **fields)
    flat = [kept[0], {**call, "namespace": None, "name": "spawn__add"}, result]
    flattened = respond(client, input=flat, **fields)
    counts = [told["usage"]["input_tokens"] for told in (sent, stored, flattened)]
    assert counts == counts[:1] * 3
    choice = {"type": "function", "name": "add", "namespace": "spawn"}
    assert respond(client, tool_choice=choice, **fields)["tool_choice"] == choice
