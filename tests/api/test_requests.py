"""What may be asked and what is answered, on every API: every wrong request gets a sentence in its
shape, none a traceback, and none harms another. Several generations that one request asks for:
taken in together, followed together, and where there is no room for them, refused together. Those
that fail, and servers that cannot generate."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.http.hooks import formatter
from app import create_app
from batching import BatchingManager
from engine.inference import Inference
from engine.queue import RequestQueue
from generate.modes import ModeName
from seams import End
from serving.config import MODES, Config
from tests.api.conftest import MOST_BODY_BYTES, client_of, held_at, serving, stats_of
from tests.support.dialects import (
    NATIVE,
    OPENAI,
    PATHS,
    RESPONSES,
    TGI,
    Json,
    ask,
    events,
    refused,
)
from tests.support.hash_app import byte_tokenizer, generated, load, spelled
from tests.support.hash_model import HashModel
from tests.support.hashed import reference
from tests.support.process import eventually

TAKING = (*PATHS, "/", "/generate_stream", "/tokenize", "/invocations")
GOOD = {"prompt": "x", "num_tokens": 1}


def post(
    client: FlaskClient, body: object, path: str = NATIVE, kind: str = "application/json"
) -> TestResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, data=data, content_type=kind)


# --- bodies ---------------------------------------------------------------------------------
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "mentions"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff\xfe\xfd", "JSON"),
        (b"[" * 60_000, "deeply"),
        (b'{"prompt": "x", "num_tokens": NaN}', "NaN"),
        (b'{"prompt": "x", "num_tokens": 1, "temperature": -Infinity}', "Infinity"),
        (b'{"prompt": "x", "num_tokens": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[]", "an array"),
        (b"null", "null"),
        (b"3", "got 3"),
        (b'"text"', "object"),
        (b"{}", ""),
    ],
)
def test_an_invalid_body_is_refused(
    client: FlaskClient, path: str, body: bytes, mentions: str
) -> None:
    assert mentions in refused(post(client, body, path), path)


@pytest.mark.parametrize("path", TAKING)
def test_a_body_must_be_declared_as_json_and_not_be_too_large(
    client: FlaskClient, path: str
) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert "application/json" in post(client, {}, path, kind).text
        assert post(client, {}, path, kind).status_code == 415
    assert post(client, b" " * (MOST_BODY_BYTES + 1), path).status_code == 413
    assert post(client, b" " * MOST_BODY_BYTES, path).status_code in (400, 422)
    for kind in ("application/json; charset=utf-8", "application/x+json"):
        assert post(client, GOOD, kind=kind).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/two%0Alines", 404), ("GET", NATIVE, 405), ("GET", "/v1/nowhere", 404),
     ("GET", "/v1/completions", 405)],
)  # fmt: skip
def test_errors_of_routing_have_a_shape(
    client: FlaskClient, method: str, path: str, status: int
) -> None:
    answer = client.open(path, method=method)
    message = refused(answer, path if path.startswith("/v1") else NATIVE, status)
    assert status == 404 or answer.headers["Allow"] in message


# --- the native API -------------------------------------------------------------------------
def expected(prompt: str, num_tokens: int, seed: int | None) -> str:
    return spelled(reference(list(prompt.encode()), num_tokens, seed), ends=True)


def told(client: FlaskClient, prompt: str = "x", tokens: int = 1, **fields: Any) -> Json:
    answer: Json = ask(client, NATIVE, prompt, tokens, **fields).get_json()
    return answer


@pytest.mark.parametrize("mode", MODES)
def test_each_request_gets_the_tokens_it_would_get_alone(mode: ModeName) -> None:
    config = Config(mode, max_batch_size=5, max_wait_ms=5)
    with serving(config) as client, ThreadPoolExecutor(12) as pool:
        asked = [
            pool.submit(told, client_of(client.application), "a" * n, 3 * n, seed=n)
            for n in range(1, 13)
        ]
        for n, one in enumerate(asked, 1):
            assert one.result()["generated"] == expected("a" * n, 3 * n, n)
            assert one.result()["prompt_tokens"] == n
        stats = stats_of(client)
    others = dict.fromkeys(("failed", "cancelled", "rejected", "waiting", "running"), 0)
    assert stats["counts"] == {"received": 12, "completed": 12, **others}
    assert stats["batch-size"]["max"] <= (1 if mode == "nobatch" else 5)
    assert stats["mode"] == mode


@pytest.mark.parametrize(("release", "iterations"), [("batch", 100), ("request", 5)])
def test_a_static_batch_forms_for_its_time_and_answers_leave_as_configured(
    release: Any, iterations: int
) -> None:
    """The model waits in its 5th iteration, after the short answer's last, until that has left."""
    model, go = held_at(5)
    config = Config("static", max_wait_ms=60_000, max_batch_size=2, static_release=release)
    with serving(config, lambda _: model) as client, ThreadPoolExecutor(2) as pool:
        short = pool.submit(told, client_of(client.application), "b", 2)
        eventually(lambda: stats_of(client)["counts"]["waiting"] == 1, "the first waits")
        long = pool.submit(told, client_of(client.application), "a", 100)
        if release == "batch":
            go.set()
        assert short.result()["num_tokens"] == 2
        assert model.iterations == iterations
        go.set()
        assert long.result()["num_tokens"] == 100
        assert stats_of(client)["batch-size"]["histogram"] == {"2": 100}


def test_without_a_seed_a_fresh_one_is_drawn_and_reported(client: FlaskClient) -> None:
    first, second = told(client, "x", 30), told(client, "x", 30)
    assert first["seed"] != second["seed"]
    assert first["generated"] != second["generated"]
    assert told(client, "x", 30, seed=first["seed"])["generated"] == first["generated"]


def test_a_reset_starts_a_new_window_and_timings_and_iterations_are_in_order() -> None:
    with serving(Config(mode="dynamic")) as client:
        told(client, "x", 3)
        assert client.post("/stats/reset").status_code == 200
        assert stats_of(client)["counts"]["received"] == 0
        timing = told(client, "x", 7)["timing"]
        stats, rows = stats_of(client), client.get("/stats/iterations").get_json()
        assert told(client)["timing"]["tpot_s"] is None
    assert 0 <= timing["queue_s"] < timing["ttft_s"] < timing["latency_s"]
    assert timing["tpot_s"] == pytest.approx((timing["latency_s"] - timing["ttft_s"]) / 6)
    assert stats["total-tokens-handled"] == 7
    found = [dict(zip(rows["columns"], row, strict=True)) for row in rows["iterations"]]
    assert [row["tokens"] for row in found] == [1] * 7
    assert all(row["start_s"] > 0 and row["rows"] == 1 and row["padding"] == 0 for row in found)


@pytest.mark.parametrize(
    ("mode", "why"),
    [("static", None), ("nobatch", None), ("dynamic", "no graphs: a decode differs")],
)
def test_a_gpu_works_ahead_and_what_is_not_used_of_it_is_told_where_operators_look(
    mode: ModeName, why: str | None
) -> None:
    model = HashModel()
    model.info = replace(model.info, unused_gpu=why, device="NVIDIA H100")
    with serving(Config(mode=mode), lambda _: model) as client:
        assert client.application.extensions["engine"].manager.lookahead == 1
        assert stats_of(client)["model"]["unused_gpu"] == why
        assert f"\neb_unused_gpu {float(bool(why))}\n" in client.get("/metrics").text


def test_a_line_of_the_log_has_an_id_its_cost_and_no_breaks(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "api.http.hooks")
    for sent in ("mine", "x" * 129, "two words"):
        answer = client.get("/no%0Awhere", headers={"X-Request-Id": sent})
        answer.close()
        assert (answer.headers["X-Request-Id"] == sent) == (sent == "mine")
        assert 'GET "/no\\nwhere" 404' in formatter("plain").format(caplog.records[-1])
    with ask(client, NATIVE, "hello", 5, stream=True) as streamed:
        assert streamed.get_data()
    line = json.loads(formatter("json").format(caplog.records[-1]))
    told = [line[name] for name in ("path", "prompt_tokens", "generated_tokens", "ends")]
    assert told == [NATIVE, 5, 5, ["length"]]


FEW, MANY = 20, 400  # iterations
SIXTY = "x" * 60


@contextmanager
def managed(model: HashModel, **options: Any) -> Iterator[tuple[FlaskClient, BatchingManager]]:
    """With what its clients do not see."""
    with serving(Config(mode="dynamic", **options), lambda _: model) as client:
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
    with managed(model) as (client, manager):
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
    with managed(HashModel(), max_waiting=2, max_waiting_prompt_tokens=100) as (client, _):
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
        managed(model, max_batch_size=1, **options) as (client, manager),
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
    with managed(model, max_batch_size=1) as (client, manager):
        asked = {"prompt": ["x", "y"], "max_tokens": FEW, "ignore_eos": True}
        refused(client.post("/v1/completions", json=asked), "/v1/completions", 500)
        answered.set()
        eventually(lambda: not manager.counts["running"], "the end of both")
        counts = stats_of(client)["counts"]
        assert [counts[end] for end in ("failed", "cancelled", "completed")] == [1, 1, 0]


# --- failures ----------------------------------------------------------------------------


BOTH = list(itertools.product(PATHS, (False, True)))


def test_a_failure_has_its_status_or_ends_its_stream() -> None:
    model = HashModel()
    with managed(model) as (client, _):
        for number, (path, stream) in enumerate(BOTH, 1):  # before the first token
            model.fail_on = [failing := model.iterations + 1]
            answer = ask(client, path, tokens=9, stream=stream)
            message = refused(answer, path, 424 if path == TGI else 500)
            assert f"iteration {failing} fails" in message
            if path == TGI:
                assert answer.get_json()["error_type"] == "generation"
            with ask(client, path, tokens=9, stream=stream) as whole:
                assert whole.status_code == 200
                assert whole.get_data()  # to its end: what counts is complete
            counts = client.get("/stats").get_json()["counts"]
            assert (counts["failed"], counts["completed"]) == (number, number)
        text = client.get("/metrics").text
        for name in (
            'tgi_batch_inference_failure{method="prefill"}',
            'tgi_request_failure{err="generation"}',
            'eb_requests_total{class="immediate",end="failed"}',
        ):
            assert f"\n{name} {len(BOTH)}.0\n" in text
        # a stream that fails later ends with an error and is not done
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


def test_a_request_past_its_limit_is_answered_though_the_model_hangs() -> None:
    model, go = held_at(1)
    with (
        managed(model, request_timeout=3600.0) as (client, manager),
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
