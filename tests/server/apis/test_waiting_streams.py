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
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import GenerationError

from tests.support.dialects import NATIVE, OPENAI, TGI, body
from tests.support.hash_app import FAIL_ON, HOLD
from tests.support.official import official, tgis
from tests.support.process import PATIENCE_S, Server, clients, serving

HEARTBEAT_S = 0.05
USER: Any = [{"role": "user", "content": "x"}]
COMMENT = b": waiting"
BODIES = {path: body(path, tokens=5, stream=True) for path in (NATIVE, *OPENAI)}
BODIES["/generate_stream"] = body(TGI, tokens=5)


class Held(NamedTuple):
    """A server whose iterations wait while the file `hold` is there."""

    server: Server
    hold: Path


@contextmanager
def holding(folder: Path, **model: object) -> Iterator[Held]:
    """Iterations continue in any case: comments would keep a failed test's streams open."""
    hold = folder / "hold"
    try:
        with serving(
            folder, hash_model={HOLD: hold, **model}, stream_heartbeat=HEARTBEAT_S
        ) as server:
            yield Held(server, hold)
    finally:
        hold.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    with holding(tmp_path_factory.mktemp("waiting")) as held:
        yield held


def stream_of(server: Server, path: str) -> requests.Response:
    return requests.post(server.url + path, json=BODIES[path], stream=True, timeout=PATIENCE_S)


def read_comments(lines: Iterator[bytes], number: int) -> None:
    """Each is followed by an empty line, as an event is. A chat's role may come in between."""
    for _ in range(number):
        while next(lines) != COMMENT:
            pass
        assert next(lines) == b""


@pytest.mark.parametrize("path", BODIES)
def test_while_a_stream_waits_comments_are_sent(held: Held, path: str) -> None:
    held.hold.touch()
    with closing(stream_of(held.server, path)) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        read_comments(lines, 3)
        held.hold.unlink()
        rest = [line for line in lines if line and line != COMMENT]
    assert rest
    assert all(line.startswith(b"data:") for line in rest)


FIELDS: Any = {"model": "embedded", "stream": True, "seed": 1, "max_tokens": 9}


def completion(server: Server) -> str:
    stream: Any = official(server).completions.create(prompt="x", **FIELDS)
    return "".join(event.choices[0].text for event in stream)


def chat(server: Server) -> str:
    stream: Any = official(server).chat.completions.create(messages=USER, **FIELDS)
    return "".join(event.choices[0].delta.content or "" for event in stream)


def tgi(server: Server) -> str:
    return "".join(tgis(server).text_generation("x", stream=True, max_new_tokens=9))


def hub_chat(server: Server) -> str:
    stream: Any = tgis(server).chat_completion(USER, **FIELDS)
    return "".join(event.choices[0].delta.content or "" for event in stream)


def in_async(server: Server) -> str:
    async def ask() -> str:
        async with AsyncInferenceClient(model=server.url, timeout=PATIENCE_S) as client:
            stream = await client.text_generation("x", stream=True, max_new_tokens=9)
            return "".join([text async for text in stream])

    return asyncio.run(ask())


OFFICIAL = (completion, chat, tgi, hub_chat, in_async)


def test_official_clients_read_a_stream_with_comments_as_one_without(held: Held) -> None:
    held.hold.touch()
    with clients(len(OFFICIAL)) as call:
        texts = [call(OFFICIAL[0], held.server)]
        held.server.reaches(running=1)  # all others wait for the second iteration
        texts += [call(ask, held.server) for ask in OFFICIAL[1:]]
        held.server.reaches(running=1, waiting=len(OFFICIAL) - 1)
        # it came after them, so each of them has been sent comments as well
        with closing(stream_of(held.server, NATIVE)) as last:
            read_comments(last.iter_lines(), 3)
            held.hold.unlink()
        assert [text.result() for text in texts] == [ask(held.server) for ask in OFFICIAL]


ERRORS: Mapping[Callable[[Server], str], type[Exception]] = {
    completion: openai.APIError,
    chat: openai.APIError,
    tgi: GenerationError,
    in_async: GenerationError,
}


def test_a_failure_after_a_comment_is_an_error_of_the_official_clients(tmp_path: Path) -> None:
    with holding(tmp_path, **{FAIL_ON: "2"}) as (server, hold), clients(1 + len(ERRORS)) as call:
        hold.touch()
        first = call(server.ask, "x", 1)
        server.reaches(running=1)  # all others are in the second iteration
        answers = [(call(ask, server), error) for ask, error in ERRORS.items()]
        server.reaches(running=1, waiting=len(ERRORS))
        with closing(stream_of(server, NATIVE)) as last:
            read_comments(last.iter_lines(), 3)
            hold.unlink()
        assert first.result().status_code == 200
        for answer, error in answers:
            with pytest.raises(error, match="iteration 2 fails"):
                answer.result()
