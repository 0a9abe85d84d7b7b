"""Streams that wait long for their first token are kept alive by comments, which the official
clients skip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import GenerationError

from tests.support.dialects import NATIVE, body
from tests.support.hash_app import FAIL_ON, HOLD
from tests.support.official import official, tgis
from tests.support.process import PATIENCE_S, Server, clients, serving

FIELDS: Any = {"model": "embedded", "stream": True, "seed": 1, "max_tokens": 9}
USER: Any = [{"role": "user", "content": "x"}]
COMMENT = b": waiting"


def completion(server: Server) -> str:
    stream: Any = official(server).completions.create(prompt="x", **FIELDS)
    return "".join(event.choices[0].text for event in stream)


def chat(server: Server) -> str:
    stream: Any = official(server).chat.completions.create(messages=USER, **FIELDS)
    return "".join(event.choices[0].delta.content or "" for event in stream)


def tgi(server: Server) -> str:
    return "".join(tgis(server).text_generation("x", stream=True, max_new_tokens=9))


def in_async(server: Server) -> str:
    async def ask() -> str:
        async with AsyncInferenceClient(model=server.url, timeout=PATIENCE_S) as client:
            stream = await client.text_generation("x", stream=True, max_new_tokens=9)
            return "".join([text async for text in stream])

    return asyncio.run(ask())


CALLS: Mapping[Callable[[Server], str], type[Exception]] = {
    completion: openai.APIError,
    chat: openai.APIError,
    tgi: GenerationError,
    in_async: GenerationError,
}


@pytest.mark.parametrize("fails", ["", "2"], ids=["answered", "failed"])
def test_official_clients_skip_comments_and_raise_their_own_error_of_a_failure(
    fails: str, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    model = {HOLD: hold, FAIL_ON: fails}
    try:
        with (
            serving(tmp_path, hash_model=model, stream_heartbeat=0.05) as server,
            clients(1 + len(CALLS)) as call,
        ):
            hold.touch()
            first = call(server.ask, "x", 1)
            server.reaches(running=1)  # all others wait for the second iteration
            answers = {ask: call(ask, server) for ask in CALLS}
            server.reaches(running=1, waiting=len(CALLS))
            # it comes after them, so each of them has been sent comments as well
            last = requests.post(
                server.url + NATIVE, json=body(NATIVE, stream=True), stream=True, timeout=PATIENCE_S
            )
            with closing(last):
                lines = last.iter_lines()
                assert [next(lines) for _ in range(6)] == [COMMENT, b""] * 3
                hold.unlink()
            assert first.result().status_code == 200
            for ask, error in CALLS.items():
                if fails:
                    with pytest.raises(error, match="iteration 2 fails"):
                        answers[ask].result()
                else:
                    assert answers[ask].result() == ask(server)
    finally:
        hold.unlink(missing_ok=True)  # comments would keep a failed test's streams open
