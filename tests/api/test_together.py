"""Several generations that one request asks for: taken in together, followed together, and where
there is no room for them, refused together. Those that fail, and servers that cannot generate."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from batching import BatchingManager
from engine.inference import Inference
from engine.queue import RequestQueue
from records import End
from serving.config import Config
from tests.api import conftest
from tests.api.conftest import client_of, held_at
from tests.support.dialects import NATIVE, OPENAI, PATHS, RESPONSES, TGI, Json, ask, events, refused
from tests.support.hash_app import byte_tokenizer, generated, load
from tests.support.hash_model import HashModel
from tests.support.process import eventually

FEW, MANY = 20, 400  # iterations
SIXTY = "x" * 60


@contextmanager
def serving(model: HashModel, **options: Any) -> Iterator[tuple[FlaskClient, BatchingManager]]:
    """With what its clients do not see."""
    with conftest.serving(Config(mode="dynamic", **options), lambda _: model) as client:
        yield client, client.application.extensions["engine"].manager


STOP = "a"
SHORT = next(p for p in map(str, range(99999)) if ord(STOP) in generated(p, 3, None))


@pytest.mark.parametrize("path", [OPENAI[0], TGI])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_its_request(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model waits in its 20th iteration until then."""
    model, ended = held_at(FEW)
    with serving(model) as (client, manager):
        cancel = manager.cancel

        def then(inference: Inference, end: End = "cancelled") -> None:
            cancel(inference, end)
            ended.set()

        monkeypatch.setattr(manager, "cancel", then)
        fields = {"stop": [STOP], **({} if path == TGI else {"temperature": 0})}
        answer = ask(client, path, SHORT, MANY, stream=stream, **fields)
        assert answer.status_code == 200
        assert answer.get_data()
        eventually(lambda: manager.counts["running"] == 0, "its end")
        assert model.iterations <= FEW + 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [SIXTY, "y" * 60], "max_tokens": 1}),
        ("/", {"inputs": [SIXTY, "y" * 60], "parameters": {"max_new_tokens": 1}}),
        ("/generate", {"inputs": SIXTY, "parameters": {"best_of": 2, "do_sample": True}}),
        ("/v1/completions", {"prompt": "x", "n": 3}),
        # of all places deferred requests have half
        ("/v1/completions", {"prompt": "x", "n": 2, "service_tier": "flex"}),
    ],
)
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


@pytest.mark.parametrize(
    ("path", "options", "several"),
    [
        *((path, {"max_waiting": 2}, {"n": 2}) for path in OPENAI),
        *((path, {"max_waiting": 1}, {}) for path in (NATIVE, RESPONSES)),
        (TGI, {"max_waiting": 2}, {"best_of": 2, "do_sample": True}),
        (TGI, {"max_concurrent_requests": 2}, {}),
    ],
)
def test_where_there_is_no_room_a_request_is_told_to_come_back(
    path: str, options: dict[str, int], several: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its generations are, where one does not fit."""
    monkeypatch.setattr(RequestQueue, "retry_after_s", 7.2)
    model, go = held_at(1)
    with (
        serving(model, max_batch_size=1, **options) as (client, manager),
        ThreadPoolExecutor(2) as pool,
    ):
        others = [pool.submit(ask, client.application.test_client(), path)]
        eventually(lambda: manager.counts["running"] == 1, "the first runs")
        others.append(pool.submit(ask, client.application.test_client(), path))
        eventually(lambda: manager.counts["waiting"] == 1, "the second waits")
        streams = (False,) if "best_of" in several else (False, True)
        answers = [ask(client, path, stream=stream, **several) for stream in streams]
        go.set()
        assert [other.result().status_code for other in others] == [200] * len(others)
        for stream in streams * 2:  # places come back
            assert ask(client, path, stream=stream).get_data()
    (option,) = options
    for answer in answers:
        assert f"--{option.replace('_', '-')}" in refused(answer, path, 429)
        assert answer.headers["Retry-After"] == "8"
        error = answer.get_json()["error"]
        if path.startswith("/v1"):
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert path != TGI or answer.get_json()["error_type"] == "overloaded"


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


# --- failures ----------------------------------------------------------------------------


BOTH = list(itertools.product(PATHS, (False, True)))


def test_a_failure_before_the_first_token_has_its_status() -> None:
    model = HashModel()
    with serving(model) as (client, _):
        for number, (path, stream) in enumerate(BOTH, 1):
            model.fail_on = [failing := model.iterations + 1]
            answer = ask(client, path, tokens=9, stream=stream)
            message = refused(answer, path, 424 if path == TGI else 500)
            assert f"iteration {failing} fails" in message
            if path == TGI:
                assert answer.get_json()["error_type"] == "generation"
            assert ask(client, path, tokens=9, stream=stream).status_code == 200
            counts = client.get("/stats").get_json()["counts"]
            assert (counts["failed"], counts["completed"]) == (number, number)
        text = client.get("/metrics").text
        for name in (
            'tgi_batch_inference_failure{method="prefill"}',
            'tgi_request_failure{err="generation"}',
            'eb_requests_total{class="immediate",end="failed"}',
        ):
            assert f"\n{name} {len(BOTH)}.0\n" in text


def test_a_request_past_its_limit_is_answered_though_the_model_hangs() -> None:
    model, go = held_at(1)
    with (
        serving(model, request_timeout=3600.0) as (client, manager),
        ThreadPoolExecutor(len(BOTH)) as pool,
    ):
        asked = [
            (path, pool.submit(ask, client_of(client.application), path, stream=stream))
            for path, stream in BOTH
        ]
        eventually(lambda: sum(manager.counts.values()) == len(BOTH), "all are there")
        manager.give_up_overdue(time.perf_counter() + 3601.0)
        for path, answer in asked:
            assert "--request-timeout" in refused(answer.result(), path, 504)
        go.set()


def test_a_stream_that_fails_later_ends_with_an_error_and_is_not_done() -> None:
    model = HashModel()
    with serving(model) as (client, _):
        for path in PATHS:
            model.fail_on = [number := model.iterations + 3]
            answer = ask(client, path, tokens=9, stream=True, seed=1)  # no end comes before
            assert answer.status_code == 200
            *sent, last = events(answer)
            assert "[DONE]" not in answer.text
            assert sent or path == OPENAI[0], "its text may end within a character"
            if path == RESPONSES:
                assert last["type"] == "response.failed"
                last = last["response"]
            error = last["error"] if isinstance(last["error"], str) else last["error"]["message"]
            assert f"iteration {number} fails" in error


def test_a_server_refuses_what_it_cannot_serve_before_and_after_it_can(tmp_path: Path) -> None:
    """Routers and gateways send requests to the servers that list a model."""
    app = create_app(Config(mode="dynamic", data_dir=str(tmp_path)), load, byte_tokenizer())
    client, engine = app.test_client(), app.extensions["engine"]
    models = ("/v1/models", "/v1/models/embedded")
    answers = {path: ask(client, path) for path in PATHS}
    assert client.get("/stats").get_json()["model"] is None
    for path, answer in (answers | {path: client.get(path) for path in models}).items():
        assert "loaded" in refused(answer, path, 503)
        assert answer.headers["Retry-After"] == "1"
    engine.start()
    while client.get("/health").status_code != 200:
        pass
    assert [client.get(path).status_code for path in models] == [200, 200]
    engine.drain()
    for path in models:
        assert "down" in refused(client.get(path), path, 503)
    engine.jobs.close()
