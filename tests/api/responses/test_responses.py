"""`/v1/responses` in this process: its events, conversations, refusals and stored responses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter
from werkzeug.test import TestResponse

from api.openai.fields.messages import MOST_MESSAGES
from api.responses.stored import kept
from api.responses.stored.background import Background
from serving.config import Config
from tests.api.conftest import TWO, held_at, serving
from tests.support.hash_app import END_ID
from tests.support.hashed import reference
from tests.support.openai_calls import CONTEXT, alike, chat, is_error
from tests.support.process import eventually

Json = dict[str, Any]
LIMIT_S = Config(mode="dynamic").request_timeout
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


def test_an_answer_without_a_text_is_an_empty_message(client: FlaskClient) -> None:
    prompt = list(b"User: x\nAssistant:")
    seed = next(s for s in range(10_000) if reference(prompt, 1, s) == [END_ID])
    told = respond(client, seed=seed, max_output_tokens=5)
    assert [item["content"][0]["text"] for item in told["output"]] == [""]
    assert told["usage"]["output_tokens"] == 1
    assert told["usage"]["input_tokens_details"]["cached_tokens"] == len(prompt) - 1


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


def test_a_response_is_stored_before_its_last_event_unless_it_is_not_to_be(
    store: FlaskClient,
) -> None:
    last = events(store, store=True, max_output_tokens=3)[-1]["response"]
    path = f"/v1/responses/{last['id']}"
    assert store.get(path).get_json() == last
    for told in (respond(store), events(store)[-1]["response"]):
        assert told["store"] is False
        answer = store.get(f"/v1/responses/{told['id']}")
        assert told["id"] in is_error(answer, 404)


def test_a_stored_response_is_its_keys_alone(store: FlaskClient) -> None:
    told = respond(store, store=True, max_output_tokens=3)
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


def test_input_items_are_paged_the_newest_first(store: FlaskClient) -> None:
    sent = [{"role": "user", "content": text} for text in "abcde"]
    told = respond(store, input=sent, store=True, max_output_tokens=1)
    path = f"/v1/responses/{told['id']}/input_items"

    def page(**query: object) -> Json:
        found: Json = store.get(path, query_string=query).get_json()
        return found

    def texts(found: Json) -> str:
        return "".join(item["content"][0]["text"] for item in found["data"])

    first = page(limit=2)
    assert (texts(first), first["has_more"]) == ("ed", True)
    rest = page(after=first["last_id"])
    assert (texts(rest), rest["has_more"]) == ("cba", False)
    assert texts(page(order="asc")) == "abcde"
    is_error(store.get(f"{path}?after=none"), 404, "after")


def test_what_does_not_fit_is_refused_or_left_out_from_the_beginning(client: FlaskClient) -> None:
    sent = [{"role": "user", "content": str(number) * 200} for number in range(8)]
    fields: Json = {"max_output_tokens": 20, "seed": 1, "instructions": "Count."}
    is_error(ask(client, input=sent, **fields), 400, "input")
    cut = respond(client, input=sent, truncation="auto", **fields)
    room = CONTEXT - fields["max_output_tokens"]
    assert room - len("User: \n") - 200 < cut["usage"]["input_tokens"] <= room
    answers = [ask(client, input=sent[one:], **fields) for one in range(8)]
    fits = next(answer for answer in answers if answer.status_code == 200)
    assert text_of(cut) == text_of(fits.get_json())
    alone = [{"role": "user", "content": "x" * CONTEXT}]
    is_error(ask(client, input=alone, truncation="auto"), 400, "input")


# --- in the background ----------------------------------------------------------------------


def test_a_response_in_the_background_is_stored_when_it_ends(store: FlaskClient) -> None:
    fields: Json = {"seed": 5, "max_output_tokens": 20}
    queued = respond(store, background=True, store=True, **fields)
    assert (queued["status"], queued["output"]) == ("queued", [])
    told = queued
    while told["status"] in ("queued", "in_progress"):
        answer = store.get(f"/v1/responses/{queued['id']}")
        told = answer.get_json()
    Response.model_validate(told)
    assert text_of(told) == text_of(respond(store, **fields))
    ended = respond(store, previous_response_id=told["id"], logit_bias={"256": 100})
    assert ended["status"] == "completed"
    cancelled = store.post(f"/v1/responses/{told['id']}/cancel")
    assert cancelled.get_json() == told, "it had ended"


def test_a_response_that_is_generated_can_be_cancelled_and_not_continued(tmp_path: Path) -> None:
    model, go = held_at(3)
    with serving(Config("dynamic", data_dir=str(tmp_path)), lambda _: model) as client:
        told = respond(client, background=True, store=True, ignore_eos=True, max_output_tokens=50)
        path = f"/v1/responses/{told['id']}"

        def status() -> str:
            found: str = client.get(path).get_json()["status"]
            return found

        eventually(lambda: status() == "in_progress", "it runs")
        early = is_error(ask(client, previous_response_id=told["id"]), 400, "previous_response_id")
        assert "not complete yet" in early
        assert client.post(f"{path}/cancel").get_json()["status"] == status() == "cancelled"
        fields: Json = {"background": True, "store": True, "max_output_tokens": 50}
        deleted, streamed = ask(client, **fields), ask(client, stream=True, **fields)
        client.delete(f"/v1/responses/{deleted.get_json()['id']}")
        parts = streamed.iter_encoded()
        begun = json.loads(next(parts).split(b"data: ")[1].split(b"\n")[0])
        client.post(f"/v1/responses/{begun['response']['id']}/cancel")
        go.set()
        last = json.loads(b"".join(parts).rpartition(b"data: ")[2])
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        eventually(lambda: client.get("/stats").get_json()["counts"]["cancelled"] == 3, "their end")
        assert status() == "cancelled"


def test_a_response_whose_server_is_lost_has_failed_a_minute_after_its_limit(
    store: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Background, "follow", lambda *_: None)  # its end is never written
    told = respond(store, background=True, store=True, max_output_tokens=1)
    now_s, path = time.time(), f"/v1/responses/{told['id']}"
    for later_s, status in ((LIMIT_S + 50, "in_progress"), (LIMIT_S + 70, "failed")):
        clock = SimpleNamespace(time=lambda later_s=later_s: now_s + later_s)
        monkeypatch.setattr(kept, "time", clock)
        assert store.get(path).get_json()["status"] == status


def test_a_stream_in_the_background_can_be_opened_again(store: FlaskClient) -> None:
    fields: Json = {"background": True, "store": True, "seed": 5, "max_output_tokens": 20}
    parts = events(store, **fields)
    kinds = [event["type"].removeprefix("response.") for event in parts]
    assert kinds[:4] == ["created", "queued", "in_progress", "output_item.added"]
    statuses = [parts[number]["response"]["status"] for number in range(3)]
    assert statuses == ["queued", "queued", "in_progress"]
    last = parts[-1]["response"]
    path = f"/v1/responses/{last['id']}"
    assert store.get(path).get_json() == last
    assert text_of(last) == text_of(respond(store, seed=5, max_output_tokens=20))

    def again(query: str, key: Json | None = None) -> TestResponse:
        return store.get(f"{path}?{query}", headers=key)

    assert events_of(again("stream=true")) == parts
    for number in range(len(parts)):
        assert events_of(again(f"stream=true&starting_after={number}")) == parts[number + 1 :]
    is_error(again("stream=true", key=TWO), 404)
    is_error(again("stream=true&starting_after=-1"), 400, "starting_after")
    is_error(again("starting_after=1"), 400, "starting_after")
    store.delete(path)
    is_error(again("stream=true"), 404)


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"stream": True}])
def test_only_events_of_a_stream_in_the_background_are_kept(
    store: FlaskClient, fields: Json
) -> None:
    answer = ask(store, store=True, max_output_tokens=1, **fields)
    told = events_of(answer)[0]["response"] if fields.get("stream") else answer.get_json()
    answer = store.get(f"/v1/responses/{told['id']}?stream=true")
    assert "'background'" in is_error(answer, 400, "stream")


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
    ("input", None, "string"),
    ("input", [0] * (MOST_MESSAGES + 1), "4096"),
    ("input", [{"role": "user", "content": [0] * MOST_MESSAGES}], "4096"),
    ("reasoning", {"effort": 3}, "strings"),
    ("text", {"verbosity": "none"}, "verbosity"),
    ("text", {"format": ODD}, "type"),
    ("text", {"format": {"type": "xml"}}, "json_schema"),
    ("conversation", "conv_1", "not supported"),
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


def test_what_changes_nothing_is_taken(client: FlaskClient) -> None:
    nothing: Json = {
        "tools": [], "text": {"format": {"type": "text"}}, "prompt_cache_key": "k",
        "safety_identifier": "s", "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
    }  # fmt: skip
    assert text_of(respond(client, seed=1, **nothing)) == text_of(respond(client, seed=1))
    tiers = [respond(client, service_tier=tier)["service_tier"] for tier in ("flex", "auto")]
    assert tiers == ["flex", "default"]


def test_what_is_not_there_is_404(client: FlaskClient) -> None:
    assert "/compact" in is_error(client.post("/v1/responses/compact", json={}), 404)
    is_error(ask(client, model="gpt-9"), 404, "model")


def test_a_full_store_is_413_before_anything_is_generated(tmp_path: Path) -> None:
    config = Config(mode="dynamic", data_dir=str(tmp_path), max_stored_bytes=2000)
    with serving(config) as client:
        while (answer := ask(client, store=True, max_output_tokens=1)).status_code == 200:
            pass
        assert "--max-stored-bytes" in is_error(answer, 413)
        respond(client)
