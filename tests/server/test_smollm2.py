"""A trained model with everything that serves GPT-2: greedy answers are the same, whatever serves
them, and a grammar keeps calls of tools, of which it knows nothing, to their schemas.
`tests/model/reference/test_smollm2.py` compares it with `transformers`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from openai import OpenAI

from client.load.http.target import Target
from tests.client.conftest import started
from tests.model.reference.test_smollm2 import QUESTIONS
from tests.smollm2 import FILE, NEEDED
from tests.support.official import ended, outcome, submitted

ASKED, TOKENS = 8, 80
START_S = 300.0
PREFIX = "You are a helpful assistant. " + "Answer every question in one short sentence. " * 8
WAYS = {
    "nobatch": ["app.py", "nobatch"],
    "static": ["app.py", "static"],
    "dynamic": ["app.py", "dynamic"],
    "preempted": ["app.py", "dynamic", "--admission", "optimistic", "--kv-memory", "800tokens"],
    "remote": ["-m", "launcher"],
    "three shards": ["-m", "launcher", "--shards", "3"],  # one for each head of keys
}
pytestmark = [
    *NEEDED,
    pytest.mark.timeout(1200),
]


@contextmanager
def served(way: str, folder: Path) -> Iterator[Target]:
    command = [sys.executable, *WAYS[way], "--model", str(FILE), "--dtype", "float32"]
    with started(command, way.replace(" ", "-"), folder / "log", START_S) as server:
        yield server.target


def client_of(target: Target) -> OpenAI:
    return OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0)


def body(question: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": PREFIX},
            {"role": "user", "content": question},
        ],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


def ask(target: Target) -> list[dict[str, Any]]:
    """All at once."""

    def one(question: str) -> dict[str, Any]:
        url = f"{target.url}/v1/chat/completions"
        answer = requests.post(url, json=body(question), timeout=600)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    with ThreadPoolExecutor(ASKED) as threads:
        return list(threads.map(one, QUESTIONS[:ASKED]))


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each question by itself."""
    with served("nobatch", tmp_path_factory.mktemp("alone")) as target:
        answers = list(map(text, ask(target)))
    assert "Paris" in answers[0]
    return answers


@pytest.mark.parametrize("way", [way for way in WAYS if way != "nobatch"])
def test_answers_are_the_same_however_they_are_served(
    way: str, alone: list[str], tmp_path: Path
) -> None:
    with served(way, tmp_path) as target:
        assert list(map(text, ask(target))) == alone
        again = ask(target)  # beginnings are there now, where prefixes are kept
        stats = requests.get(f"{target.url}/stats", timeout=60).json()
    assert list(map(text, again)) == alone
    hits = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in again]
    assert all(n >= 16 for n in hits) if way == "dynamic" else way != "static" or not any(hits)
    assert (stats["preemptions"] > 0) == (way == "preempted")


def test_a_deferred_job_answers_the_same(alone: list[str], tmp_path: Path) -> None:
    lines = [
        {"custom_id": f"id {n}", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": FILE.stem, **body(question)}}
        for n, question in enumerate(QUESTIONS[:ASKED])
    ]  # fmt: skip
    with served("dynamic", tmp_path) as target, client_of(target) as client:
        job = ended(client, submitted(client, lines, endpoint="/v1/chat/completions").id)
        output, errors = outcome(client, job, len(lines))
    assert not errors
    assert [text(output[f"id {n}"]["response"]["body"]) for n in range(ASKED)] == alone
