"""Streams that wait long for their first token: kept alive by comments that every client skips."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import requests
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import GenerationError
from openai import OpenAI

from tests.server.hash_app import FAIL_ON, HOLD
from tests.server.process import PATIENCE_S, Server, clients, closed_at_end, serving

HEARTBEAT_S = 0.05
USER: Any = [{"role": "user", "content": "x"}]
COMMENT = b": waiting"
PATHS: Mapping[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 5},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 5},
    "/generate_stream": {"inputs": "x", "parameters": {"max_new_tokens": 5}},
    "/inference": {"prompt": "x", "num_tokens": 5},
}


class Held(NamedTuple):
    """A server whose iterations wait while the file `hold` is there."""

    server: Server
    hold: Path


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    folder = tmp_path_factory.mktemp("waiting")
    hold = folder / "hold"
    with serving(folder, hash_model={HOLD: hold}, stream_heartbeat=HEARTBEAT_S) as server:
        yield Held(server, hold)


@contextmanager
def released(hold: Path) -> Iterator[None]:
    """Iterations continue in any case: comments would keep a failed test's streams open."""
    try:
        yield
    finally:
        hold.unlink(missing_ok=True)


def stream_of(server: Server, path: str) -> requests.Response:
    body = {**PATHS[path], **({} if path == "/generate_stream" else {"stream": True})}
    return requests.post(server.url + path, json=body, stream=True, timeout=PATIENCE_S)


def read_comments(lines: Iterator[bytes], number: int) -> None:
    """Each is followed by an empty line, as an event is. A chat's role may come in between."""
    for _ in range(number):
        while next(lines) != COMMENT:
            pass
        assert next(lines) == b""


@pytest.mark.parametrize("path", PATHS)
def test_while_a_stream_waits_comments_are_sent(held: Held, path: str) -> None:
    held.hold.touch()
    with released(held.hold), closing(stream_of(held.server, path)) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        read_comments(lines, 3)
        held.hold.unlink()
        rest = [line for line in lines if line and line != COMMENT]
    assert rest
    assert all(line.startswith(b"data:") for line in rest)


def openai_client(url: str) -> OpenAI:
    return closed_at_end(
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    )


def openai_completion(url: str) -> str:
    client = openai_client(url)
    fields: Any = {"model": "embedded", "prompt": "x", "seed": 1, "max_tokens": 9}
    return "".join(e.choices[0].text for e in client.completions.create(stream=True, **fields))


def openai_chat(url: str) -> str:
    client = openai_client(url)
    fields: Any = {"model": "embedded", "messages": USER, "seed": 1, "max_tokens": 9}
    stream = client.chat.completions.create(stream=True, **fields)
    return "".join(event.choices[0].delta.content or "" for event in stream)


def tgi(url: str) -> str:
    client = closed_at_end(InferenceClient(model=url, timeout=PATIENCE_S))
    return "".join(client.text_generation("x", stream=True, max_new_tokens=9))


def tgi_async(url: str) -> str:
    async def ask() -> str:
        async with AsyncInferenceClient(model=url, timeout=PATIENCE_S) as client:
            stream = await client.text_generation("x", stream=True, max_new_tokens=9)
            return "".join([text async for text in stream])

    return asyncio.run(ask())


def hub_chat(url: str) -> str:
    client = closed_at_end(InferenceClient(base_url=f"{url}/v1", timeout=PATIENCE_S))
    stream = client.chat_completion(USER, model="embedded", stream=True, seed=1, max_tokens=9)
    return "".join(event.choices[0].delta.content or "" for event in stream)


def hub_chat_async(url: str) -> str:
    async def ask() -> str:
        async with AsyncInferenceClient(base_url=f"{url}/v1", timeout=PATIENCE_S) as client:
            stream = await client.chat_completion(
                USER, model="embedded", stream=True, seed=1, max_tokens=9
            )
            return "".join([event.choices[0].delta.content or "" async for event in stream])

    return asyncio.run(ask())


OFFICIAL = (openai_completion, openai_chat, tgi, tgi_async, hub_chat, hub_chat_async)


def test_official_clients_read_a_stream_with_comments_as_one_without(held: Held) -> None:
    held.hold.touch()
    with clients(len(OFFICIAL)) as call, released(held.hold):
        texts = [call(OFFICIAL[0], held.server.url)]
        held.server.reaches(running=1)  # all others wait for the second iteration
        texts += [call(ask, held.server.url) for ask in OFFICIAL[1:]]
        held.server.reaches(running=1, waiting=len(OFFICIAL) - 1)
        # it came after them, so each of them has been sent comments as well
        with closing(stream_of(held.server, "/inference")) as last:
            read_comments(last.iter_lines(), 3)
            held.hold.unlink()
        assert [text.result() for text in texts] == [ask(held.server.url) for ask in OFFICIAL]


def test_a_failure_after_a_comment_is_an_error_of_the_official_clients(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    expected: list[tuple[Callable[[str], str], type[Exception]]] = [
        (openai_completion, openai.APIError),
        (openai_chat, openai.APIError),
        (tgi, GenerationError),
        (tgi_async, GenerationError),
    ]
    steps: dict[str, object] = {HOLD: hold, FAIL_ON: "2"}
    with (
        serving(tmp_path, hash_model=steps, stream_heartbeat=HEARTBEAT_S) as server,
        clients(1 + len(expected)) as call,
        released(hold),
    ):
        first = call(server.ask, "x", 1)
        server.reaches(running=1)  # all others are in the second iteration
        answers = [(call(ask, server.url), error) for ask, error in expected]
        server.reaches(running=1, waiting=len(expected))
        with closing(stream_of(server, "/inference")) as last:
            read_comments(last.iter_lines(), 3)
            hold.unlink()
        assert first.result().status_code == 200
        for answer, error in answers:
            with pytest.raises(error, match="iteration 2 fails"):
                answer.result()
