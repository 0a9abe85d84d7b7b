"""The Responses API through the router: a conversation stays where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
import requests
from openai import OpenAI

from router.rules.responses import mark_of
from tests.router.conftest import RouterProcess
from tests.support.process import PATIENCE_S, Server, closed_at_end, serving

Start = Callable[..., RouterProcess]
FIELDS: Any = {"model": "embedded", "input": "x", "max_output_tokens": 3}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    with serving(first) as one, serving(second) as two:
        yield [one, two]


def official(url: str) -> OpenAI:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    return closed_at_end(client)


def made_at(router: RouterProcess, server: Server) -> str:
    """The id of a response that the router had made there."""
    while True:
        made = official(router.url).responses.with_raw_response.create(**FIELDS)
        if made.headers["X-Upstream-Origin"] == server.url:
            return made.parse().id


def test_a_conversation_stays_where_it_is_stored(servers: list[Server], start: Start) -> None:
    urls = [server.url for server in servers]
    router = start(*urls, policy="round-robin").probed()
    ids = [made_at(router, server) for server in servers]
    restarted = start(*reversed(urls)).probed()
    for found in (router, restarted):
        responses = official(found.url).responses
        for server, id in zip(servers, ids, strict=True):
            for _ in range(2):
                again = responses.with_raw_response.create(previous_response_id=id, **FIELDS)
                assert again.headers["X-Upstream-Origin"] == server.url
            counted = responses.input_tokens.count(
                model="embedded", input="x", previous_response_id=id
            )
            assert counted.input_tokens > 0
            assert responses.retrieve(id).id == id
            assert [item.type for item in responses.input_items.list(id)] == ["message"]
            with pytest.raises(openai.BadRequestError, match="background"):
                responses.cancel(id)
    official(restarted.url).responses.delete(ids[0])
    with pytest.raises(openai.NotFoundError):
        official(router.url).responses.retrieve(ids[0])


def test_a_stream_in_the_background_is_resumed_where_it_is_generated(
    servers: list[Server], start: Start
) -> None:
    urls = [server.url for server in servers]
    client = official(start(*urls, policy="round-robin").probed().url)
    for _ in urls:
        with client.responses.create(background=True, stream=True, **FIELDS) as stream:
            begun: Any = next(iter(stream))
        rest = list(client.responses.retrieve(begun.response.id, stream=True, starting_after=0))
        assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
        assert rest[-1].type in ("response.completed", "response.incomplete")


def test_where_the_server_of_a_conversation_is_down_no_other_is_asked(
    servers: list[Server], start: Start
) -> None:
    one, two = (server.url for server in servers)
    id = made_at(start(one, two, policy="round-robin").probed(), servers[1])
    mark = id.split("_")[1]
    down = "http://127.0.0.1:1"
    client = official(start(one, down).probed().url)
    with pytest.raises(openai.NotFoundError):  # the one that answers never had it
        client.responses.create(previous_response_id=id, **FIELDS)
    lost = id.replace(mark, mark_of(down))
    for call in (
        lambda: client.responses.create(previous_response_id=lost, **FIELDS),
        lambda: client.responses.retrieve(lost),
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            call()
        assert refused.value.status_code == 503


def test_a_response_that_was_made_without_the_router_is_looked_for(
    servers: list[Server], start: Start
) -> None:
    id = official(servers[0].url).responses.create(**FIELDS).id
    client = official(start(servers[0].url).probed().url)
    assert client.responses.retrieve(id).id == id


def test_a_client_cannot_choose_the_mark(servers: list[Server], start: Start) -> None:
    router = start(servers[0].url).probed()
    answer = requests.post(
        f"{router.url}/v1/responses",
        json=FIELDS,
        headers={"X-Upstream-Mark": "00000000"},
        timeout=PATIENCE_S,
    )
    assert answer.json()["id"].startswith(f"resp_{mark_of(servers[0].url)}_")
