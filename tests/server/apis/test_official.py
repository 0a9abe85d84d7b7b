"""Each official client once, over real sockets. What the APIs promise is tested in tests/api.

The cases of TGI's own `integration-tests/models/test_flash_gpt2.py` are here with the embedded
model in place of GPT-2: ten greedy tokens with details, all parameters, and a load of identical
requests that must have identical answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from huggingface_hub.errors import ValidationError
from openai.types.responses import Response
from pydantic import BaseModel

from tests.server.apis import clients as programs
from tests.server.apis.test_clients import understood
from tests.support.hash_app import STEP_S
from tests.support.official import official, tgis
from tests.support.process import Server, clients, serving


@pytest.mark.parametrize("name", ["openai", "huggingface_hub"])
def test_a_client_chats_calls_a_tool_and_gets_an_answer_of_a_schema(
    embedded: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of `test_clients.py` do, each in an environment of its own."""
    monkeypatch.setattr(programs, "MODEL", "embedded")
    understood(programs.told(name, embedded.url))


# --- OpenAI's -------------------------------------------------------------------------------


def test_completions_in_openais_client(embedded: Server) -> None:
    client = official(embedded)
    assert [model.id for model in client.models.list()] == ["embedded"]
    greedy = client.completions.create(
        model="embedded", prompt="def add(a, b):", temperature=0, max_tokens=12, logprobs=3
    ).choices[0]
    told = greedy.logprobs
    assert told is not None
    assert "".join(told.tokens or []) == greedy.text
    pairs = zip(told.tokens or [], told.top_logprobs or [], strict=True)
    assert [max(top, key=lambda token: top[token]) for _, top in pairs] == told.tokens


def test_errors_are_the_own_exceptions_of_openais_client(server: Server) -> None:
    client = official(server)
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError, match="gpt-9") as unknown:
            client.completions.create(model="gpt-9", prompt="x", stream=stream)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError, match="context length is 1024") as long:
            client.completions.create(model="embedded", prompt="x" * 2000, stream=stream)
        assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="'conversation'"):
        client.responses.create(model="embedded", input="x", conversation="conv_1")


# --- OpenAI's, /v1/responses ----------------------------------------------------------------


def test_a_response_is_streamed_and_kept(server: Server) -> None:
    client = official(server)
    fields: Any = {"model": "embedded", "max_output_tokens": 30, "extra_body": {"seed": 3}}
    whole = client.responses.create(input="x", **fields)
    Response.model_validate(whole.to_dict())
    with client.responses.stream(input="x", **fields) as stream:
        last: Any = list(stream)[-1]
    kept = client.responses.retrieve(last.response.id)
    assert kept.output_text == last.response.output_text == whole.output_text != ""
    assert [item.type for item in client.responses.input_items.list(kept.id)] == ["message"]
    again = client.responses.create(input="y", previous_response_id=kept.id, **fields)
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
    assert isinstance(client.responses.parse(**fields).output_parsed, Verdict)
    with client.responses.stream(**fields) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Verdict)


BACKGROUND: Any = {"model": "embedded", "input": "x", "background": True}


def test_a_stream_in_the_background_continues_where_it_broke(server: Server) -> None:
    client = official(server)
    server.reaches(running=0)
    fields: Any = {"max_output_tokens": 60, "extra_body": {"seed": 3, "ignore_eos": True}}
    events: list[Any] = []
    with client.responses.create(**BACKGROUND, stream=True, **fields) as stream:
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
    assert events[-1].type == "response.incomplete"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == client.responses.create(**{**BACKGROUND, "background": False},
                                                      **fields).output_text  # fmt: skip


def test_responses_in_the_background_can_be_cancelled_and_deleted(server: Server) -> None:
    client = official(server)
    server.reaches(running=0)
    before = server.counts()["cancelled"]
    fields: Any = {**BACKGROUND, "extra_body": {"ignore_eos": True}}
    first, second = (client.responses.create(**fields) for _ in range(2))
    assert first.status == "queued"
    server.reaches(running=2)
    with pytest.raises(openai.BadRequestError, match="not complete yet"):
        client.responses.create(model="embedded", input="y", previous_response_id=first.id)
    assert client.responses.cancel(first.id).status == "cancelled"
    client.responses.delete(second.id)
    server.reaches(running=0, cancelled=before + 2)
    with client.responses.create(**fields, stream=True) as stream:
        begun: Any = next(iter(stream))
        client.responses.cancel(begun.response.id)
        *_, last = stream
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")


def test_a_response_of_a_server_that_was_killed_has_failed(tmp_path: Path) -> None:
    fields: Any = {**BACKGROUND, "extra_body": {"ignore_eos": True}}
    with serving(tmp_path, hash_model={STEP_S: 0.05}) as server:
        told = official(server).responses.create(**fields)
        server.reaches(running=1)
    with serving(tmp_path) as server:
        lost = official(server).responses.retrieve(told.id)
    assert lost.status == "failed"
    assert lost.error is not None
    assert lost.error.code == "server_error"


# --- TGI's ----------------------------------------------------------------------------------

ONCE = "Once upon a time"


def test_ten_greedy_tokens_with_details_in_tgis_client(embedded: Server) -> None:
    told = tgis(embedded).text_generation(
        ONCE, max_new_tokens=10, details=True, decoder_input_details=True
    )
    assert told.details is not None
    assert told.details.finish_reason == "length"
    assert told.details.generated_tokens == len(told.details.tokens) == 10
    assert told.details.seed is None
    assert told.details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in told.details.prefill[1:])
    assert all(token.logprob <= 0 for token in told.details.tokens)
    texts = [token.text for token in (*told.details.prefill, *told.details.tokens)]
    assert told.generated_text == "".join(texts)
    assert told.generated_text.startswith(ONCE)


def test_all_parameters_in_tgis_client(embedded: Server) -> None:
    told = tgis(embedded).text_generation(
        ONCE,
        max_new_tokens=10,
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        return_full_text=False,
        stop=["zebra"],
        temperature=0.5,
        top_p=0.9,
        top_k=10,
        truncate=5,
        typical_p=0.9,
        watermark=False,
        details=True,
        decoder_input_details=True,
        seed=0,
        top_n_tokens=2,
        best_of=1,
    )
    assert told.details is not None
    assert told.details.seed == 0
    assert len(told.details.prefill) <= 5
    assert told.details.top_tokens is not None
    assert [len(top) for top in told.details.top_tokens] == [2] * told.details.generated_tokens


def test_a_load_of_identical_requests_has_identical_answers(embedded: Server) -> None:
    def ask() -> str:
        return tgis(embedded).text_generation(ONCE, max_new_tokens=10)

    with clients(4) as call:
        texts = [future.result() for future in [call(ask) for _ in range(4)]]
    assert len(set(texts)) == 1


def test_a_stream_and_a_refusal_in_tgis_client(embedded: Server) -> None:
    client = tgis(embedded)
    asked: Any = {"max_new_tokens": 12, "seed": 7, "do_sample": True}
    whole = client.text_generation(ONCE, return_full_text=False, **asked)
    assert "".join(client.text_generation(ONCE, stream=True, **asked)) == whole
    for stream in (False, True):
        with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
            client.text_generation("x", temperature=-1.0, stream=stream)
