"""`/v1/responses` in this process: its events, conversations, refusals and stored responses. What
models write before they answer, in chats and in TGI's API, too."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from flask.testing import FlaskClient
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter
from werkzeug.test import TestResponse

from api.openai.fields.messages import MOST_MESSAGES
from api.responses.stored import EventLogs, encoded
from serving.config import Config
from tests.api.conftest import TWO, Says, held_at, saying, serving
from tests.api.openai.test_tools import ADDING, CALL, PARIS
from tests.api.openai.test_tools import TOOLS as OF_CHAT
from tests.support.dialects import TGI, Json
from tests.support.dialects import ask as ask_any
from tests.support.openai_calls import CHAT, alike, calls_of, chat, is_error
from tests.support.openai_calls import both as both_chats
from tests.support.process import eventually

OFFICIAL = TypeAdapter[Any](ResponseStreamEvent)


def ask(client: FlaskClient, key: Json | None = None, **fields: Any) -> TestResponse:
    body = {"model": "embedded", "input": "x", "store": False, **fields}
    return client.post("/v1/responses", json=body, headers=key)


def respond(client: FlaskClient, **fields: Any) -> Json:
    answer = ask(client, **fields)
    assert answer.status_code == 200, answer.get_json()
    told: Json = answer.get_json()
    Response.model_validate(told, strict=True)
    return told


def events(client: FlaskClient, **fields: Any) -> list[Json]:
    found = events_of(ask(client, stream=True, **fields))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def events_of(answer: TestResponse) -> list[Json]:
    assert answer.status_code == 200, answer.get_json()
    assert answer.mimetype == "text/event-stream"
    *blocks, rest = answer.get_data(as_text=True).split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        OFFICIAL.validate_python(event)
        found.append(event)
    return found


def text_of(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def both(client: FlaskClient, **fields: Any) -> Json:
    """A response, which its stream is, too, item by item."""
    whole, parts = respond(client, **fields), events(client, **fields)
    last = parts[-1]["response"]
    assert alike(last) == alike(whole)
    for index, item in enumerate(last["output"]):
        added, *own, done = [event for event in parts if event.get("output_index") == index]
        part = "arguments" if item["type"] == "function_call" else "content"
        assert added["type"] == "response.output_item.added"
        empty = "" if part == "arguments" else []
        assert added["item"] == {**item, "status": "in_progress", part: empty}
        assert (done["type"], done["item"]) == ("response.output_item.done", item)
        assert {event["item_id"] for event in own} == {item["id"]}
        written = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert written == (item[part] if part == "arguments" else item[part][0]["text"])
    return whole


# --- what is generated ----------------------------------------------------------------------


def test_events_have_openais_order(client: FlaskClient) -> None:
    parts = events(client, max_output_tokens=5, ignore_eos=True)
    kinds = [event["type"].removeprefix("response.") for event in parts]
    beginning = ["created", "in_progress", "output_item.added", "content_part.added"]
    end = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    middle = ["output_text.delta"] * (len(kinds) - len(beginning) - len(end))
    assert kinds == [*beginning, *middle, *end]
    assert middle
    created = parts[0]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    asked: Json = {"include": ["message.output_text.logprobs"], "max_output_tokens": 9, "seed": 1}
    *told, last = events(client, **asked)
    logprobs = [one for e in told if e["type"].endswith("text.delta") for one in e["logprobs"]]
    assert logprobs == last["response"]["output"][0]["content"][0]["logprobs"] != []


# --- conversations --------------------------------------------------------------------------


def test_a_conversation_is_that_of_its_messages_without_earlier_instructions(
    store: FlaskClient,
) -> None:
    fields: Json = {"seed": 3, "max_output_tokens": 9, "store": True}
    first = respond(store, input="one", instructions="Be brief.", **fields)
    parts = [{"type": "input_text", "text": "tw"}, {"type": "input_text", "text": "o"}]
    item = {"role": "user", "content": parts}
    second = respond(
        store, previous_response_id=first["id"], input=[item], instructions="Be long.", **fields
    )
    third = respond(store, previous_response_id=second["id"], input="three", **fields)
    texts = ("one", text_of(first), "two", text_of(second), "three")
    asked = [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(texts)]
    answer = chat(store, messages=asked, seed=3, max_tokens=9)
    assert text_of(third) == answer["choices"][0]["message"]["content"]
    assert third["previous_response_id"] == second["id"]
    # the same, from the items that the client kept itself
    kept = [{"role": "user", "content": "one"}, *first["output"], item, *second["output"]]
    again = respond(store, input=[*kept, {"role": "user", "content": "three"}], **fields)
    assert text_of(again) == text_of(third)


def test_a_response_is_stored_before_its_last_event_and_its_keys_alone(store: FlaskClient) -> None:
    for other in (respond(store), events(store)[-1]["response"]):
        is_error(store.get(f"/v1/responses/{other['id']}"), 404)  # with "store": false
    told = events(store, store=True, max_output_tokens=3)[-1]["response"]
    path = f"/v1/responses/{told['id']}"
    calls: list[Callable[[Json], TestResponse]] = [
        lambda key: store.post(f"{path}/cancel", headers=key),
        lambda key: store.get(f"{path}/input_items", headers=key),
        lambda key: store.get(path, headers=key),
        lambda key: store.delete(path, headers=key),
    ]
    for call in calls:
        is_error(call(TWO), 404)
    is_error(ask(store, TWO, previous_response_id=told["id"]), 404, "previous_response_id")
    cancelled, items, got, deleted = (call({}) for call in calls)
    assert "background" in is_error(cancelled, 400)
    ResponseItemList.model_validate(items.get_json())
    assert got.get_json() == told
    assert deleted.get_json() == {"id": told["id"], "object": "response", "deleted": True}
    for call in calls:
        is_error(call({}), 404)


# --- functions, on a model that answers what the test wants ----------------------------------

TOOLS: list[Json] = [{"type": "function", **tool["function"]} for tool in OF_CHAT]


ANSWERS: list[tuple[str, list[tuple[str, str]]]] = [
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


def test_what_codex_sends_is_taken(says: Says, caplog: pytest.LogCaptureFixture) -> None:
    """Functions in a namespace reach the model by a longer name and the client by its own; a tool
    that a server may leave out is left out. The result of a call continues the conversation."""
    client = says('So:\n<tool_call>\n{"name": "spawn__add", "arguments": {}}\n</tool_call>')
    space = {"type": "namespace", "name": "spawn", "description": "d", "tools": [TOOLS[1]]}
    search = {"type": "web_search", "external_web_access": False}
    fields: Json = {"tools": [*TOOLS, space, search], "reasoning": {}, "store": True}
    called = respond(client, **fields)
    _, call = called["output"]
    assert (call["namespace"], call["name"], call["arguments"]) == ("spawn", "add", "{}")
    assert [tool["type"] for tool in called["tools"]] == ["function", "function", "namespace"]
    assert 'tools of type "web_search": left out' in caplog.text
    begun = [e for e in events(client, **fields) if e["type"] == "response.output_item.added"]
    added = begun[1]
    assert added["item"].items() >= {"namespace": "spawn", "name": "add"}.items()
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    client, fields["seed"] = says("Done."), 1
    kept = [{"role": "user", "content": "x"}, *called["output"], result]
    sent = respond(client, input=kept, **fields)
    stored = respond(client, previous_response_id=called["id"], input=[result], **fields)
    assert alike({**stored, "previous_response_id": None}) == alike(sent)
    assert shown(stored) == [("message", "Done.")]
    answer = ask(client, input=[{**result, "call_id": "call_none"}], **fields)
    assert "call_none" in is_error(answer, 400, "input")
    told = {"type": "function_call_output", "name": "goal", "namespace": "agent", "output": "done"}
    as_user = [{"role": "user", "content": "x"}, {"role": "user", "content": "done"}]
    told_of, asked = (respond(client, input=[*i], **fields) for i in ([as_user[0], told], as_user))
    assert alike(told_of) == alike(asked)  # no call asked for it: it has no id of one
    choice = {"type": "function", "name": "add", "namespace": "spawn"}
    assert respond(client, tool_choice=choice, **fields)["tool_choice"] == choice


# --- in the background ----------------------------------------------------------------------


def test_a_response_that_is_generated_can_be_cancelled_and_not_continued(tmp_path: Path) -> None:
    model, go = held_at(3)
    with serving(Config("dynamic", data_dir=str(tmp_path)), lambda _: model) as client:
        told = respond(client, background=True, store=True, ignore_eos=True, max_output_tokens=50)
        assert (told["status"], told["output"]) == ("queued", [])
        path = f"/v1/responses/{told['id']}"

        def status() -> str:
            found: str = client.get(path).get_json()["status"]
            return found

        eventually(lambda: status() == "in_progress", "it runs")
        early = is_error(ask(client, previous_response_id=told["id"]), 400, "previous_response_id")
        assert "not complete yet" in early
        assert client.post(f"{path}/cancel").get_json()["status"] == status() == "cancelled"
        fields: Json = {"background": True, "store": True, "max_output_tokens": 50}
        parts = ask(client, stream=True, **fields).iter_encoded()
        begun = json.loads(next(parts).split(b"data: ")[1].split(b"\n")[0])
        client.post(f"/v1/responses/{begun['response']['id']}/cancel")
        go.set()
        last = json.loads(b"".join(parts).rpartition(b"data: ")[2])
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        eventually(lambda: client.get("/stats").get_json()["counts"]["cancelled"] == 2, "their end")


def test_a_stream_in_the_background_can_be_opened_again(store: FlaskClient) -> None:
    fields: Json = {"background": True, "store": True, "seed": 5, "max_output_tokens": 20}
    parts = events(store, **fields)
    statuses = [parts[number]["response"]["status"] for number in range(3)]
    assert statuses == ["queued", "queued", "in_progress"]
    last = parts[-1]["response"]
    path = f"/v1/responses/{last['id']}"
    assert store.get(path).get_json() == last
    assert store.post(f"{path}/cancel").get_json() == last, "it had ended"
    assert text_of(last) == text_of(respond(store, seed=5, max_output_tokens=20))

    def again(query: str, key: Json | None = None) -> TestResponse:
        return store.get(f"{path}?{query}", headers=key)

    assert events_of(again("stream=true")) == parts
    for number in range(len(parts)):
        assert events_of(again(f"stream=true&starting_after={number}")) == parts[number + 1 :]
    is_error(again("stream=true", key=TWO), 404)
    is_error(again("stream=true&starting_after=-1"), 400, "starting_after")
    store.delete(path)
    is_error(again("stream=true"), 404)


# the kept events
EVENT: Json = {"type": "response.function_call_arguments.delta", "delta": "x"}


def test_the_oldest_events_are_dropped_and_their_stream_says_so() -> None:
    logs = EventLogs(most_bytes=3 * len(encoded(EVENT)))
    logs.open("old")
    first, second = logs.follow("old", 0), logs.follow("old", 0)
    assert first is not None
    assert second is not None
    logs.add("old", EVENT)
    assert list(first.read()) == [], "a second stream ends the first"
    logs.open("new")
    for _ in range(3):
        logs.add("new", EVENT)
    (told,) = second.read()
    assert b'"error"' in (told or b"")
    assert logs.follow("old", 0) is None
    kept = logs.follow("new", 0)
    assert kept is not None
    assert [*itertools.islice(kept.read(), 4)] == [*[encoded(EVENT)] * 3, None]
    logs.add("new", EVENT)
    assert logs.follow("new", 0) is None, "it alone is too long"


# --- refusals -------------------------------------------------------------------------------

IMAGE = {"type": "input_image", "image_url": "data:"}
ODD = {"type": "json_schema", "strict": True, "schema": {"type": 3}}
NAMED: list[tuple[str, object, str]] = [
    ("tools", [{"type": "function"}], "name"),
    ("input", [{"role": "user", "content": [IMAGE]}], "input_image"),
    ("input", [{"type": "item_reference", "id": "i"}], "item_reference"),
    ("input", [{"type": "reasoning", "content": [{"type": "x"}]}], "reasoning_text"),
    ("input", [{"role": "tool", "content": "x"}], "function_call_output"),
    ("input", [], "array"),
    ("input", ["hello"], "items"),
    ("input", [0] * (MOST_MESSAGES + 1), "4096"),
    ("input", [{"role": "user", "content": [0] * MOST_MESSAGES}], "4096"),
    ("text", {"verbosity": "none"}, "verbosity"),
    ("text", {"format": ODD}, "type"),
    ("text", {"format": {"type": "xml"}}, "json_schema"),
    ("prompt", {"id": "p"}, "not supported"),
]


@pytest.mark.parametrize(("param", "value", "said"), NAMED)
def test_what_is_not_supported_is_refused_by_name_streamed_or_not(
    client: FlaskClient, param: str, value: object, said: str
) -> None:
    wrong: Json = {param: value}
    for stream in (None, True):
        message = is_error(ask(client, stream=stream, **wrong), 400, param)
        assert f"'{param}'" in message or param == "input"
        assert said in message
    assert "background" in is_error(ask(client, background=True), 400, "store")
    assert "/compact" in is_error(client.post("/v1/responses/compact", json={}), 404)


# the parts of Qwen3's template that concern reasoning
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if tools %}<tool_call>{% endif %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
THOUGHT = "Is it <b>?\n\nIt is."
BEFORE = f"<think>\n{THOUGHT}\n</think>\n\n"


def reasoning(folder: Path, kind: Literal["apart", "text"] = "apart") -> Config:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Config(mode="dynamic", model=str(folder), served_model_name="embedded", reasoning=kind)


@pytest.fixture(scope="module")
def thinks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Says]:
    with saying(reasoning(tmp_path_factory.mktemp("thinks"))) as says:
        yield says


@pytest.mark.parametrize(
    ("answer", "content", "calls"), [("Fine.", "Fine.", []), (CALL, None, [("weather", PARIS)])]
)
def test_reasoning_is_apart_from_the_answer_streamed_or_not(
    thinks: Says,
    answer: str,
    content: str | None,
    calls: list[tuple[str, str]],
) -> None:
    thinking = thinks(BEFORE + answer)
    whole = both_chats(thinking, CHAT, tools=OF_CHAT, logprobs=True, seed=1)
    (choice,) = whole["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, content)
    assert calls_of(message) == calls
    tokens = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
    assert tokens.decode().strip() == answer
    details = whole["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(BEFORE.rstrip())}


def test_a_response_has_an_item_of_reasoning_which_may_be_sent_back(thinks: Says) -> None:
    thinking = thinks(BEFORE + CALL)
    whole = respond(thinking, tools=TOOLS)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    last = both(thinks(BEFORE + "Fine."), seed=1)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message"]
    details = last["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": len(BEFORE.rstrip())}

    def counted(items: list[Json]) -> int:
        user = {"role": "user", "content": "x"}
        tokens: int = respond(thinking, input=[user, *items, user])["usage"]["input_tokens"]
        return tokens

    sent = last["output"]
    assert counted(sent) - counted(sent[1:]) == len(BEFORE)


def test_where_it_is_asked_for_the_text_stays_as_it_is(thinks: Says, tmp_path: Path) -> None:
    with saying(reasoning(tmp_path, "text")) as says:
        for answer, calls in (("Fine.", []), (CALL, [("weather", PARIS)])):
            message = chat(says(BEFORE + answer), tools=OF_CHAT)["choices"][0]["message"]
            assert "reasoning_content" not in message
            assert message["content"].strip() == (BEFORE if calls else BEFORE + answer).strip()
            assert calls_of(message) == calls
    told = chat(thinks(BEFORE + "Fine."), chat_template_kwargs={"enable_thinking": False})
    assert told["choices"][0]["message"]["content"] == BEFORE + "Fine.", "the prompt has closed it"
    told = ask_any(thinks(BEFORE + CALL), TGI, tokens=200).get_json()
    assert told["generated_text"] == BEFORE + CALL, "in TGI's API, too"


@pytest.mark.parametrize("field", ["background", "store"])
def test_tokens_are_counted_of_what_could_be_asked_alone(client: FlaskClient, field: str) -> None:
    for value, status in ((True, 200), ("x", 400)):
        answer = client.post("/v1/responses/input_tokens", json={"input": "x", field: value})
        assert answer.status_code == status
