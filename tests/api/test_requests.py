"""What may be asked and what is answered, on every API: every wrong request gets a sentence in its
shape, none a traceback, and none harms another."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.http.hooks.logs import formatter
from generate.modes import ModeName
from serving.config import MODES, Config
from tests.api.conftest import MOST_BODY_BYTES, client_of, held_at, serving
from tests.support.dialects import (
    NATIVE,
    PATHS,
    Json,
    ask,
    body,
    refused,
)
from tests.support.hash_app import spelled
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
    [("GET", "/nowhere", 404), ("POST", "/elsewhere", 404), ("GET", "/two%0Alines", 404),
     ("GET", NATIVE, 405), ("PUT", NATIVE, 405), ("POST", "/stats", 405),
     ("GET", "/stats/reset", 405), ("DELETE", "/health", 405), ("GET", "/v1/nowhere", 404),
     ("GET", "/v1/completions", 405)],
)  # fmt: skip
def test_errors_of_routing_have_a_shape(
    client: FlaskClient, method: str, path: str, status: int
) -> None:
    answer = client.open(path, method=method)
    message = refused(answer, path if path.startswith("/v1") else NATIVE, status)
    assert status == 404 or answer.headers["Allow"] in message


# --- the native API -------------------------------------------------------------------------
def test_a_refusal_says_what_is_allowed(client: FlaskClient) -> None:
    wrong: list[tuple[Json, str]] = [
        ({"prompt": ""}, "'prompt' must be a string of at least one character"),
        ({"class": "urgent"}, "'immediate' or 'deferred'"),
        *(({name: 5}, f"unknown field {json.dumps(name)[:60]}") for name in ("\n", "x" * 500)),
        ({"max_tokens": 5}, "allowed: prompt, num_tokens"),
    ]
    for fields, said in wrong:
        assert said in refused(post(client, {**GOOD, **fields}), NATIVE)
    assert "'num_tokens' is missing" in refused(post(client, {"prompt": "x"}), NATIVE)
    assert len(refused(post(client, {**GOOD, "num_tokens": "9" * 1000}), NATIVE)) < 300


def expected(prompt: str, num_tokens: int, seed: int | None) -> str:
    return spelled(reference(list(prompt.encode()), num_tokens, seed), ends=True)


def told(client: FlaskClient, prompt: str = "x", tokens: int = 1, **fields: Any) -> Json:
    answer: Json = ask(client, NATIVE, prompt, tokens, **fields).get_json()
    return answer


def stats_of(client: FlaskClient) -> Json:
    stats: Json = client.get("/stats").get_json()
    return stats


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
    greedy = {told(client, "x", 20, temperature=0, seed=seed)["generated"] for seed in (1, 2)}
    assert greedy == {expected("x", 20, None)}


def test_a_reset_starts_a_new_window_and_timings_and_iterations_are_in_order() -> None:
    config = Config(mode="dynamic")
    with serving(config) as client:
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
    assert stats["options"] == json.loads(json.dumps(config.as_dict()))


@pytest.mark.parametrize(
    ("mode", "why"),
    [("static", None), ("nobatch", None), ("dynamic", "no graphs: a decode differs")],
)
def test_a_gpu_works_ahead_and_what_is_not_used_of_it_is_told_where_operators_look(
    mode: ModeName, why: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = HashModel()
    model.info = replace(model.info, unused_gpu=why, device="NVIDIA H100")
    with serving(Config(mode=mode), lambda _: model) as client:
        assert client.application.extensions["engine"].manager.lookahead == 1
        assert stats_of(client)["model"]["unused_gpu"] == why
        assert f"\neb_unused_gpu {float(bool(why))}\n" in client.get("/metrics").text
        eventually(lambda: "ready: " in caplog.text, "the line")
    (ready,) = [one for one in caplog.records if "ready: " in one.getMessage()]
    assert ready.levelno == (logging.WARNING if why else logging.INFO)
    assert ready.getMessage().endswith(f"; {why}") is bool(why)


def lines_of(caplog: pytest.LogCaptureFixture, kind: str) -> list[str]:
    lines = [formatter(kind).format(record) for record in caplog.records]
    caplog.clear()
    return lines


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_has_one_line_with_its_id_and_its_cost(
    client: FlaskClient, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "api.http.hooks.logs")
    for sent, tokens in (("mine", 5), ("x" * 129, 0), ("two words", 0)):
        asked = body(NATIVE, "hello", tokens, stream=stream)
        with client.post(NATIVE, json=asked, headers={"X-Request-Id": sent}) as answer:
            answer.get_data()
        (line,) = map(json.loads, lines_of(caplog, "json"))
        identity = answer.headers["X-Request-Id"]
        assert (identity == sent) == (sent == "mine"), "one that is none is replaced"
        told = [line[name] for name in ("method", "path", "status", "request_id")]
        assert told == ["POST", NATIVE, 200 if tokens else 400, identity]
        if tokens:
            assert (line["prompt_tokens"], line["generated_tokens"]) == (5, 5)
            assert line["ends"] == ["length"]
            assert 0 <= line["queue_s"] < line["ttft_s"] < line["duration_s"]
    client.get("/no%0Awhere").close()
    client.get("/health").close()  # a probe has none
    (line,) = lines_of(caplog, "plain")
    assert 'GET "/no\\nwhere" 404' in line
