"""Several generations that one request asks for: taken in together, followed together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from flask.testing import FlaskClient

from batching import BatchingManager
from engine.inference import Inference
from engine.queue import RequestQueue
from records import End
from serving.config import Config
from tests.api import conftest
from tests.api.openai.openai_calls import PATHS, ask, is_error
from tests.hash_model import HashModel
from tests.hashed import reference
from tests.server.hash_app import END_ID
from tests.server.process import PATIENCE_S, eventually

FEW, MANY = 20, 400  # iterations


@contextmanager
def serving(model: HashModel, **options: Any) -> Iterator[tuple[FlaskClient, BatchingManager]]:
    with conftest.serving(Config(mode="dynamic", **options), lambda _: model) as client:
        yield client, client.application.extensions["engine"].manager


def greedy(prompt: str, n: int) -> list[int]:
    return reference(list(prompt.encode()), n, None)


def test_a_stop_string_ends_its_response_while_another_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model waits in its 20th iteration until the short answer was ended: one after the other
    it would only be read when the long one is complete."""
    long = next(p for p in map(str, range(999)) if END_ID not in greedy(p, MANY))
    stop = next(c for c in map(chr, range(33, 127)) if ord(c) not in greedy(long, MANY))
    short = next(p for p in map(str, range(99999)) if ord(stop) in greedy(p, 3))
    model, ended = HashModel(), threading.Event()
    in_time = []

    def wait(number: int) -> None:
        if number == FEW:
            in_time.append(ended.wait(PATIENCE_S))

    model.before_iteration = wait
    with serving(model) as (client, manager):
        cancel = manager.cancel

        def watched(inference: Inference, end: End = "cancelled") -> None:
            cancel(inference, end)
            ended.set()

        monkeypatch.setattr(manager, "cancel", watched)
        told = client.post(
            "/",
            json={
                "inputs": [long, short],
                "parameters": {"max_new_tokens": MANY, "stop": [stop], "details": True},
            },
        ).get_json()
    assert in_time == [True]
    reasons = [answer["details"]["finish_reason"] for answer in told]
    assert reasons == ["length", "stop_sequence"]
    assert told[0]["details"]["generated_tokens"] == MANY


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["x" * 60, "y" * 60], "max_tokens": 1}),
        ("/v1/completions", {"prompt": "x" * 60, "n": 2, "max_tokens": 1}),
        ("/", {"inputs": ["x" * 60, "y" * 60], "parameters": {"max_new_tokens": 1}}),
        (
            "/generate",
            {
                "inputs": "x" * 60,
                "parameters": {"best_of": 2, "do_sample": True, "max_new_tokens": 1},
            },
        ),
    ],
)
def test_prompts_that_could_never_wait_together_are_the_clients_mistake(
    path: str, body: dict[str, object]
) -> None:
    """Not 429: coming back later would not help."""
    with serving(HashModel(), max_waiting_prompt_tokens=100) as (client, _):
        answer = client.post(path, json=body)
        assert answer.status_code == (400 if path.startswith("/v1") else 422)
        assert "--max-waiting-prompt-tokens" in str(answer.get_json()["error"])
        alone = {"prompt": "x" * 200, "max_tokens": 1}
        assert client.post("/v1/completions", json=alone).status_code == 200


def test_more_texts_than_may_wait_are_the_clients_mistake() -> None:
    with serving(HashModel(), max_waiting=2) as (client, _):
        answer = client.post("/", json={"inputs": ["x", "y", "z"], "parameters": {}})
        assert answer.status_code == 422
        assert "--max-waiting" in answer.get_json()["error"]


@pytest.mark.parametrize("path", PATHS)
def test_more_deferred_choices_than_may_wait_are_the_clients_mistake(path: str) -> None:
    """Not 429, as of all places deferred requests have half."""
    with serving(HashModel(), max_waiting=8) as (client, _):
        told = is_error(ask(client, path, n=5, service_tier="flex"), 400)
        assert "allowed: 4, half of --max-waiting" in told
        for tier, n in (("flex", 4), ("default", 5)):
            answer = ask(client, path, n=n, service_tier=tier, max_tokens=1)
            assert len(answer.get_json()["choices"]) == n


def test_a_request_beyond_the_concurrent_ones_gets_the_estimate_of_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RequestQueue, "retry_after_s", 7.2)
    model, gate = HashModel(), threading.Event()

    def wait(_: int) -> None:
        gate.wait(PATIENCE_S)

    model.before_iteration = wait
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    with (
        serving(model, max_concurrent_requests=1) as (client, manager),
        ThreadPoolExecutor(1) as pool,
    ):
        other = client.application.test_client()
        first = pool.submit(lambda: other.post("/generate", json=body).status_code)
        eventually(lambda: manager.counts["running"] == 1, "the first runs")
        answer = client.post("/generate", json=body)
        gate.set()
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "8")
        assert first.result() == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_full_queue_is_a_rate_limit_in_openais_words(path: str) -> None:
    model, gate = HashModel(), threading.Event()

    def wait(_: int) -> None:
        gate.wait(PATIENCE_S)

    model.before_iteration = wait
    with (
        serving(model, max_batch_size=1, max_waiting=1) as (client, manager),
        ThreadPoolExecutor(2) as pool,
    ):
        others = [client.application.test_client() for _ in range(2)]
        pool.submit(ask, others[0], path, max_tokens=1)
        eventually(lambda: manager.counts["running"] == 1, "the first runs")
        pool.submit(ask, others[1], path, max_tokens=1)
        eventually(lambda: manager.counts["waiting"] == 1, "the second waits")
        refused = ask(client, path)
        gate.set()
        is_error(refused, 429)
        assert refused.get_json()["error"]["type"] == "rate_limit_error"
        assert refused.get_json()["error"]["code"] == "rate_limit_exceeded"


def test_a_failed_response_cancels_its_other_generations() -> None:
    """The second prompt runs when the first has failed, and waits in its 5th iteration until the
    response was sent."""
    model, answered = HashModel(fail_on=[1]), threading.Event()

    def wait(number: int) -> None:
        if number == 5:
            answered.wait(PATIENCE_S)

    model.before_iteration = wait
    with serving(model, max_batch_size=1) as (client, _):
        answer = ask(client, prompt=["x", "y"], max_tokens=FEW, ignore_eos=True)
        answered.set()
        is_error(answer, 500)

        def ends() -> list[int]:
            counts = client.get("/stats").get_json()["counts"]
            return [counts[end] for end in ("failed", "cancelled", "completed")]

        eventually(lambda: sum(ends()) == 2, "the end of both")
        assert ends() == [1, 1, 0]
