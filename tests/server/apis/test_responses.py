"""The Responses API over real sockets, by OpenAI's official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.server.hash_app import FAIL_ON, STEP_S
from tests.server.process import PATIENCE_S, Server, closed_at_end, serving
from tests.server.wire import send


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("responses")
    with serving(folder, hash_model={STEP_S: 0.01}) as server:
        yield server


def official(server: Server) -> OpenAI:
    base_url = f"{server.url}/v1"
    return closed_at_end(
        OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=PATIENCE_S)
    )


def test_a_response_is_streamed_and_kept(keeping: Server) -> None:
    client = official(keeping)
    fields: Any = {"model": "embedded", "max_output_tokens": 30, "extra_body": {"seed": 3}}
    whole = client.responses.create(input="x", metadata={"a": "b"}, **fields)
    Response.model_validate(whole.to_dict())
    assert whole.output_text
    with client.responses.stream(input="x", metadata={"a": "b"}, **fields) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last: Any = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    kept = client.responses.retrieve(last.response.id)
    assert kept.output_text == whole.output_text
    assert kept.metadata == {"a": "b"}
    assert [item.type for item in client.responses.input_items.list(kept.id)] == ["message"]
    again = client.responses.create(input="y", previous_response_id=kept.id, **fields)
    assert again.previous_response_id == kept.id
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(input="z", previous_response_id=again.id, **fields)
    assert refused.value.code == "previous_response_not_found"


class Verdict(BaseModel):
    colour: Literal["red", "green"]
    sure: bool


def test_a_schema_gives_the_clients_own_object_streamed_or_not(embedded: Server) -> None:
    client = official(embedded)
    fields: Any = {"model": "embedded", "input": "A colour?", "text_format": Verdict}
    verdict = client.responses.parse(**fields).output_parsed
    assert isinstance(verdict, Verdict)
    with client.responses.stream(**fields) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Verdict)
    text: Any = {"format": {"type": "json_object"}}
    told = client.responses.create(model="embedded", input="x", text=text, max_output_tokens=9)
    assert told.output_text.lstrip().startswith("{")


def test_what_is_not_supported_is_the_clients_own_exception(keeping: Server) -> None:
    client = official(keeping)
    with pytest.raises(openai.BadRequestError, match="'conversation'") as refused:
        client.responses.create(model="embedded", input="x", conversation="conv_1")
    assert refused.value.param == "conversation"


def test_a_response_in_the_background_can_be_cancelled_and_deleted(keeping: Server) -> None:
    client = official(keeping)
    before = keeping.counts()["cancelled"]
    fields: Any = {"model": "embedded", "background": True, "extra_body": {"ignore_eos": True}}
    first, second = (client.responses.create(input="x", **fields) for _ in range(2))
    assert first.status == "queued"
    keeping.reaches(running=2)
    assert client.responses.retrieve(first.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="not complete yet"):
        client.responses.create(model="embedded", input="y", previous_response_id=first.id)
    assert client.responses.cancel(first.id).status == "cancelled"
    client.responses.delete(second.id)
    keeping.reaches(running=0, cancelled=before + 2)
    assert client.responses.retrieve(first.id).status == "cancelled"


def test_a_stream_in_the_background_continues_where_it_broke(keeping: Server) -> None:
    client = official(keeping)
    keeping.reaches(running=0)
    fields: Any = {
        "model": "embedded",
        "input": "x",
        "max_output_tokens": 60,
        "extra_body": {"seed": 3, "ignore_eos": True},
    }
    events: list[Any] = []
    with client.responses.create(background=True, stream=True, **fields) as stream:
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                break
    response_id, number = events[0].response.id, events[-1].sequence_number
    with client.responses.retrieve(response_id, stream=True, starting_after=number) as stream:
        events += [event for event, _ in zip(stream, range(5), strict=False)]
    number = events[-1].sequence_number
    events += client.responses.retrieve(response_id, stream=True, starting_after=number)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == client.responses.create(**fields).output_text
    assert events[-1].response.output_text == "".join(deltas)


def test_a_stream_in_the_background_tells_that_it_was_cancelled(keeping: Server) -> None:
    client = official(keeping)
    keeping.reaches(running=0)
    with client.responses.create(
        model="embedded", input="x", background=True, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        begun: Any = next(iter(stream))
        keeping.reaches(running=1)
        client.responses.cancel(begun.response.id)
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"


def test_a_response_of_a_server_that_was_killed_has_failed(tmp_path: Path) -> None:
    fields: Any = {"model": "embedded", "background": True, "extra_body": {"ignore_eos": True}}
    with serving(tmp_path, hash_model={STEP_S: 0.05}) as server:
        told = official(server).responses.create(input="x", **fields)
        server.reaches(running=1)
    with serving(tmp_path) as server:
        lost = official(server).responses.retrieve(told.id)
        assert lost.status == "failed"
        assert lost.error is not None
        assert lost.error.code == "server_error"


def test_a_stream_that_fails_later_ends_with_its_own_event(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "3,4"}) as server:
        stream = official(server).responses.create(
            model="embedded", input="x", stream=True, extra_body={"ignore_eos": True}
        )
        *_, last = stream
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "fails" in last.response.error.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_response(keeping: Server, stream: bool) -> None:
    keeping.reaches(running=0, waiting=0)
    before = keeping.counts()["cancelled"]
    with send(keeping, "/v1/responses", input="x", ignore_eos=True, stream=stream):
        keeping.reaches(running=1)
    keeping.reaches(running=0, cancelled=before + 1)
