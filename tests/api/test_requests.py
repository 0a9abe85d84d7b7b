"""What may be asked and what is answered, on every API: every wrong request gets a sentence in its
shape, none a traceback, and none harms another."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from api.native import InferenceRequest
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.tgi.schemas import GenerateRequest, Parameters
from generate.modes import ModeName
from serving.config import MODES, Config
from tests.api.conftest import MOST_BODY_BYTES, held_at, serving
from tests.examples import examples
from tests.support.dialects import (
    NATIVE,
    OPENAI,
    PATHS,
    RESPONSES,
    Json,
    ask,
    refused,
)
from tests.support.hash_app import spelled
from tests.support.hash_model import HashModel
from tests.support.hashed import reference
from tests.support.process import eventually

# any JSON, and the names of fields
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
FORMS = (InferenceRequest, CompletionRequest, ChatRequest, GenerateRequest)
NAMES = sorted({"input", "other", *(name for form in FORMS for name in form.model_fields)})
PARAMETERS = st.dictionaries(st.sampled_from([*Parameters.model_fields, "other"]), JSON)
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


@examples(100, 400)
@given(
    path=st.sampled_from(TAKING),
    body=JSON
    | st.binary(max_size=200)
    | st.dictionaries(st.sampled_from(NAMES), JSON, max_size=8)
    | st.fixed_dictionaries(
        {"inputs": st.text(max_size=9)}, optional={"parameters": PARAMETERS, "stream": JSON}
    ),
)
def test_anything_is_answered_or_refused_with_a_sentence(
    client: FlaskClient, path: str, body: object
) -> None:
    if isinstance(body, dict) and path in (*OPENAI, RESPONSES):
        body = {"max_tokens": 2, "max_output_tokens": 2, "store": False, **body}
    answer = post(client, body, path)
    if answer.status_code != 200:
        assert answer.status_code in (400, 404, 422)
        error = answer.get_json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert 0 < len(message) < 4000
        assert "\n" not in message
    answer.get_data()


# --- the native API -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": ""}, "'prompt' must be a string of at least one character"),
        ({"temperature": 1e-9}, "'temperature' must be 0 (greedy) or a number"),
        ({"seed": 2**64}, "from -2**63 to 2**64 - 1"),
        ({"class": "urgent"}, "'immediate' or 'deferred'"),
        *(({name: 5}, f"unknown field {json.dumps(name)[:60]}") for name in ("", "\n", "x" * 500)),
        ({"max_tokens": 5}, "allowed: prompt, num_tokens"),
    ],
)
def test_a_refusal_says_what_is_allowed(
    client: FlaskClient, fields: dict[str, object], said: str
) -> None:
    assert said in refused(post(client, {**GOOD, **fields}), NATIVE)


def test_missing_fields_are_named_and_values_are_shown_cut(client: FlaskClient) -> None:
    for field in GOOD:
        rest = {name: value for name, value in GOOD.items() if name != field}
        assert f"'{field}' is missing" in refused(post(client, rest), NATIVE)
    body = b'{"prompt": "x", "num_tokens": 1, "temperature": 1e999}'
    assert "'temperature'" in refused(post(client, body), NATIVE)
    assert len(refused(post(client, {**GOOD, "num_tokens": "9" * 1000}), NATIVE)) < 300


def test_a_class_a_deadline_and_the_models_name_change_no_token(client: FlaskClient) -> None:
    plain = post(client, {**GOOD, "seed": 1}).get_json()["generated"]
    for fields in ({"class": "deferred", "deadline_s": 60}, {"model": "embedded"}):
        answer = post(client, {**GOOD, "seed": 1, **fields}).get_json()
        assert answer["generated"] == plain
    refused(post(client, {**GOOD, "model": "other"}), NATIVE, 404)


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
    wanted = [("a" * n, 3 * n, n) for n in range(1, 13)]
    config = Config(mode, max_batch_size=5, max_wait_ms=5)
    with serving(config) as client, ThreadPoolExecutor(len(wanted)) as pool:
        clients = [client.application.test_client() for _ in wanted]
        answers = [
            pool.submit(told, one, prompt, n, seed=seed)
            for one, (prompt, n, seed) in zip(clients, wanted, strict=True)
        ]
        for (prompt, n, seed), answer in zip(wanted, answers, strict=True):
            body = answer.result()
            assert body["generated"] == expected(prompt, n, seed)
            assert body["completion"] == prompt + body["generated"]
            assert (body["num_tokens"], body["prompt_tokens"]) == (n, len(prompt))
        stats = stats_of(client)
    others = dict.fromkeys(("failed", "cancelled", "rejected", "waiting", "running"), 0)
    assert stats["counts"] == {"received": 12, "completed": 12, **others}
    assert stats["total-tokens-handled"] == sum(n for _, n, _ in wanted)
    assert stats["batch-size"]["max"] <= (1 if config.mode == "nobatch" else 5)
    assert stats["mode"] == config.mode
    assert config.mode != "dynamic" or stats["policy"] == config.policy


@pytest.mark.parametrize(("release", "iterations"), [("batch", 100), ("request", 5)])
def test_a_static_batch_forms_for_its_time_and_answers_leave_as_configured(
    release: Any, iterations: int
) -> None:
    """The model waits in its 5th iteration, after the short answer's last, until that has left."""
    model, go = held_at(5)
    config = Config("static", max_wait_ms=60_000, max_batch_size=2, static_release=release)
    with serving(config, lambda _: model) as client, ThreadPoolExecutor(2) as pool:
        short = pool.submit(told, client.application.test_client(), "b", 2)
        eventually(lambda: stats_of(client)["counts"]["waiting"] == 1, "the first waits")
        long = pool.submit(told, client.application.test_client(), "a", 100)
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


def test_the_timing_of_an_answer_is_in_order(client: FlaskClient) -> None:
    timing = told(client, "x", 10)["timing"]
    assert 0 <= timing["queue_s"] < timing["ttft_s"] < timing["latency_s"]
    assert timing["tpot_s"] == pytest.approx((timing["latency_s"] - timing["ttft_s"]) / 9)
    assert told(client)["timing"]["tpot_s"] is None


def test_a_reset_starts_a_new_window_and_stats_say_what_runs() -> None:
    config = Config(mode="dynamic")
    with serving(config) as client:
        told(client, "x", 3)
        assert client.post("/stats/reset").status_code == 200
        assert stats_of(client)["counts"]["received"] == 0
        told(client, "x", 7)
        stats, rows = stats_of(client), client.get("/stats/iterations").get_json()
    assert stats["total-tokens-handled"] == 7
    found = [dict(zip(rows["columns"], row, strict=True)) for row in rows["iterations"]]
    assert [row["tokens"] for row in found] == [1] * 7
    assert all(row["start_s"] > 0 and row["rows"] == 1 and row["padding"] == 0 for row in found)
    assert stats["model"]["note"].startswith("next token = hash")
    assert stats["machine"].keys() == {"cpu", "cores", "memory_gib", "gpu", "torch", "python"}
    assert stats["options"] == json.loads(json.dumps(config.as_dict()))


@pytest.mark.parametrize(
    "why",
    [None, "CUDA graphs are not used: a replayed decode differs by 0.5 from one that is launched"],
)
def test_a_gpu_works_ahead_and_what_is_not_used_of_it_is_told_where_operators_look(
    why: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = HashModel()
    model.info = replace(model.info, unused_gpu=why, device="NVIDIA H100")
    with serving(Config(mode="dynamic"), lambda _: model) as client:
        assert client.application.extensions["engine"].manager.lookahead == 1
        assert stats_of(client)["model"]["unused_gpu"] == why
        assert f"\neb_unused_gpu {float(bool(why))}\n" in client.get("/metrics").text
        eventually(lambda: "ready: " in caplog.text, "the line")
    (ready,) = [one for one in caplog.records if "ready: " in one.getMessage()]
    assert ready.levelno == (logging.WARNING if why else logging.INFO)
    assert ready.getMessage().endswith(f"; {why}") is bool(why)


@pytest.mark.parametrize("has_one", [True, False])
def test_the_live_page_is_told_whether_the_model_has_a_chat_template(
    tmp_path: Path, has_one: bool
) -> None:
    if has_one:
        (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    config = Config(mode="dynamic", model=str(tmp_path), data_dir=str(tmp_path / "data"))
    with serving(config) as client, client.get("/watch/events") as response:
        event = next(response.iter_encoded())
    assert event.startswith(b"event: hello\ndata: ")
    assert json.loads(event.split(b"data: ")[1])["chat_template"] is has_one
