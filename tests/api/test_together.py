"""Several generations that one request asks for: taken in together, followed together, and where
there is no room for them, refused together."""

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
from tests.support.dialects import OPENAI, PATHS, TGI, ask, refused
from tests.support.hash_app import END_ID, generated
from tests.support.hash_model import HashModel
from tests.support.process import PATIENCE_S, eventually

FEW, MANY = 20, 400  # iterations
SIXTY = "x" * 60


@contextmanager
def serving(model: HashModel, **options: Any) -> Iterator[tuple[FlaskClient, BatchingManager]]:
    with conftest.serving(Config(mode="dynamic", **options), lambda _: model) as client:
        yield client, client.application.extensions["engine"].manager


def held_at(number: int, **options: Any) -> tuple[HashModel, threading.Event]:
    """A model that waits in its iteration of this number until the event."""
    go = threading.Event()

    def wait(begun: int) -> None:
        if begun == number:
            assert go.wait(PATIENCE_S)

    return HashModel(before_iteration=wait, **options), go


# a long answer without an end and without a character that a short one has early
LONG = next(p for p in map(str, range(999)) if END_ID not in generated(p, MANY, None))
STOP = next(c for c in map(chr, range(33, 127)) if ord(c) not in generated(LONG, MANY, None))
SHORT = next(p for p in map(str, range(99999)) if ord(STOP) in generated(p, 3, None))


def watched(manager: BatchingManager, patch: pytest.MonkeyPatch, ended: threading.Event) -> None:
    """Sets the event when a request is ended."""
    cancel = manager.cancel

    def then(inference: Inference, end: End = "cancelled") -> None:
        cancel(inference, end)
        ended.set()

    patch.setattr(manager, "cancel", then)


@pytest.mark.parametrize("path", [OPENAI[0], TGI])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_its_request(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model waits in its 20th iteration until then."""
    model, ended = held_at(FEW)
    with serving(model) as (client, manager):
        watched(manager, monkeypatch, ended)
        fields = {"stop": [STOP], **({} if path == TGI else {"temperature": 0})}
        answer = ask(client, path, SHORT, MANY, stream=stream, **fields)
        assert answer.status_code == 200
        assert answer.get_data()
        eventually(lambda: manager.counts["running"] == 0, "its end")
        assert model.iterations <= FEW + 1


def test_a_stop_string_ends_its_response_while_another_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other the short answer would only be read when the long one is complete."""
    model, ended = held_at(FEW)
    with serving(model) as (client, manager):
        watched(manager, monkeypatch, ended)
        parameters = {"max_new_tokens": MANY, "stop": [STOP], "details": True}
        asked = {"inputs": [LONG, SHORT], "parameters": parameters}
        told = client.post("/", json=asked).get_json()
    reasons = [one["details"]["finish_reason"] for one in told]
    assert reasons == ["length", "stop_sequence"]
    assert told[0]["details"]["generated_tokens"] == MANY


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [SIXTY, "y" * 60], "max_tokens": 1}),
        ("/", {"inputs": [SIXTY, "y" * 60], "parameters": {"max_new_tokens": 1}}),
        ("/generate", {"inputs": SIXTY, "parameters": {"best_of": 2, "do_sample": True}}),
        ("/v1/completions", {"prompt": "x", "n": 3}),
        # of all places deferred requests have half
        ("/v1/completions", {"prompt": "x", "n": 2, "service_tier": "flex"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 2,
                                  "service_tier": "flex"}),
    ],
)  # fmt: skip
def test_what_could_never_wait_together_is_the_clients_mistake(
    path: str, body: dict[str, Any]
) -> None:
    """Not 429: coming back later would not help."""
    with serving(HashModel(), max_waiting=2, max_waiting_prompt_tokens=100) as (client, _):
        assert "--max-waiting" in refused(client.post(path, json=body), path)
        assert ask(client, "/v1/completions", "x" * 200).status_code == 200, "alone it may"
        for tier, n in (("flex", 1), ("default", 2)):
            answer = ask(client, "/v1/completions", n=n, service_tier=tier)
            assert len(answer.get_json()["choices"]) == n


@pytest.mark.parametrize("path", PATHS)
def test_beyond_the_queue_a_request_is_told_to_come_back(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its generations are, where one does not fit."""
    monkeypatch.setattr(RequestQueue, "retry_after_s", 7.2)
    model, go = held_at(1)
    with (
        serving(model, max_batch_size=1, max_waiting=2) as (client, manager),
        ThreadPoolExecutor(3) as pool,
    ):
        several: dict[str, Any] = {
            OPENAI[0]: {"n": 2},
            OPENAI[1]: {"n": 2},
            TGI: {"best_of": 2, "do_sample": True},
        }
        clients = [client.application.test_client() for _ in range(2)]
        others = [pool.submit(ask, clients[0], path)]
        eventually(lambda: manager.counts["running"] == 1, "the first runs")
        others.append(pool.submit(ask, clients[1], path))
        eventually(lambda: manager.counts["waiting"] == 1, "the second waits")
        if path not in several:
            others.append(pool.submit(ask, client.application.test_client(), path))
            eventually(lambda: manager.counts["waiting"] == 2, "the third waits")
        answers = [ask(client, path, **several.get(path, {}))]
        if path != TGI:
            answers.append(ask(client, path, stream=True, **several.get(path, {})))
        go.set()
        assert [other.result().status_code for other in others] == [200] * len(others)
    for answer in answers:
        assert "--max-waiting" in refused(answer, path, 429)
        assert answer.headers["Retry-After"] == "8"
        error = answer.get_json()["error"]
        if path.startswith("/v1"):
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_beyond_the_concurrent_ones_a_request_of_tgi_is_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RequestQueue, "retry_after_s", 7.2)
    model, go = held_at(1)
    with (
        serving(model, max_concurrent_requests=1) as (client, manager),
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(ask, client.application.test_client(), TGI)
        eventually(lambda: manager.counts["running"] == 1, "the first runs")
        answers = [ask(client, TGI, stream=stream) for stream in (False, True)]
        go.set()
        assert first.result().status_code == 200
        for answer in answers:
            assert "--max-concurrent-requests" in refused(answer, TGI, 429)
            assert answer.get_json()["error_type"] == "overloaded"
            assert answer.headers["Retry-After"] == "8"
        for stream in (False, True) * 2:  # places come back
            assert ask(client, TGI, stream=stream).get_data()


def test_a_failed_response_cancels_its_other_generations() -> None:
    """The second prompt runs when the first has failed, and waits in its 5th iteration until the
    response was sent."""
    model, answered = held_at(5, fail_on=[1])
    with serving(model, max_batch_size=1) as (client, manager):
        asked = {"prompt": ["x", "y"], "max_tokens": FEW, "ignore_eos": True}
        refused(client.post("/v1/completions", json=asked), "/v1/completions", 500)
        answered.set()
        eventually(lambda: not manager.counts["running"], "the end of both")
        counts = client.get("/stats").get_json()["counts"]
        assert [counts[end] for end in ("failed", "cancelled", "completed")] == [1, 1, 0]
