"""Texts become tokens, and the reverse, on any upstream that has the model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.router.conftest import Farm, RouterProcess, until
from tests.support.process import PATIENCE_S, serving

Start = Callable[..., RouterProcess]
Shared = tuple[RouterProcess, str]


def test_tokens_need_no_place(farm: Farm, start: Start) -> None:
    upstream = farm.new()
    router = start(upstream, max_connect_per_upstream=1).probed()
    held = {"model": "m", "prompt": "x", "behave": {"hold": True}}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(router.post, json=held)
        try:
            until(lambda: router.in_flight() == 1, "the request that takes the place")
            assert router.post("/tokenize").status_code == 200
        finally:
            farm("release", url=upstream)
        assert answer.result().status_code == 200


def test_where_an_upstream_fails_another_is_asked(farm: Farm, start: Start) -> None:
    broken, whole = farm.new(drop="before"), farm.new()
    router = start(broken, whole).probed()
    answer = router.post("/tokenize")
    assert answer.status_code == 200
    assert answer.headers["X-Upstream-Origin"] == whole
    alone = start(broken).probed().post("/tokenize")
    assert alone.status_code == 502
    assert "error" in alone.json()


OF_TGI = {"error", "error_type"}
OF_OPENAI = {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "body", "keys"),
    [
        ("/tokenize", {"inputs": "x"}, OF_TGI),
        ("/tokenize", {}, OF_TGI),
        ("/tokenize", {"prompt": "x"}, OF_OPENAI),
        ("/tokenize", {"messages": []}, OF_OPENAI),
        ("/detokenize", {"tokens": [1]}, OF_OPENAI),
        ("/chat_tokenize", {"messages": []}, OF_TGI),
    ],
)
def test_an_error_has_the_shape_of_its_api(
    shared: Shared, path: str, body: dict[str, Any], keys: set[str]
) -> None:
    answer = shared[0].post(path, json={**body, "model": "other"})
    assert answer.status_code == 422
    told = answer.json()
    assert set(told if keys is OF_TGI else told["error"]) == keys
    assert "available models: m" in str(told)


def test_our_own_servers_tokens_are_the_servers(tmp_path: Path, start: Start) -> None:
    with serving(tmp_path) as server:
        router = start(server.url).probed()
        messages = [{"role": "user", "content": "x"}]
        for path, body in (
            ("/tokenize", {"inputs": "def main("}),
            ("/tokenize", {"prompt": "def main("}),
            ("/tokenize", {"messages": messages}),
            ("/detokenize", {"tokens": [100, 101]}),
            ("/chat_tokenize", {"messages": messages}),
            ("/detokenize", {"tokens": [10**6]}),
        ):
            direct = requests.post(server.url + path, json=body, timeout=PATIENCE_S)
            answer = router.post(path, json=body)
            assert (answer.status_code, answer.json()) == (direct.status_code, direct.json())
