"""What a server does with its options, and what it says of its requests."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from generate.modes import ModeName
from serving.config import MODES, Config
from tests.api.conftest import held_at, serving
from tests.support.dialects import NATIVE, Json, ask
from tests.support.hash_app import spelled
from tests.support.hash_model import HashModel
from tests.support.hashed import reference
from tests.support.process import eventually


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
