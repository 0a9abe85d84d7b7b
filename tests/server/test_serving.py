"""Requests over a real socket: the tokens are right, and as many run together as the limits say."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import requests

from serving.config import MODES
from tests.hashed import reference
from tests.server.hash_app import HOLD, STEP_S, UNUSED_GPU, byte_tokenizer
from tests.server.process import PATIENCE_S, Server, clients, eventually, serving
from text.tokenizer import Detokenizer


def expected(prompt: str, num_tokens: int, seed: int | None) -> str:
    detokenizer = Detokenizer(byte_tokenizer())
    tokens = reference(list(prompt.encode()), num_tokens, seed)
    return detokenizer.push(tokens) + detokenizer.finish()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_each_request_the_tokens_it_would_get_alone(
    mode: str, tmp_path: Path
) -> None:
    wanted = [("a" * n, 3 * n, n) for n in range(1, 13)]
    with (
        serving(tmp_path, mode, {STEP_S: 0.001}, max_batch_size=5) as server,
        clients(len(wanted)) as call,
    ):
        answers = [call(server.ask, prompt, n, seed=seed) for prompt, n, seed in wanted]
        for (prompt, n, seed), answer in zip(wanted, answers, strict=True):
            body = answer.result().json()
            assert body["generated"] == expected(prompt, n, seed)
            assert body["completion"] == prompt + body["generated"]
            assert (body["num_tokens"], body["prompt_tokens"]) == (n, len(prompt))
        stats = server.stats()
    assert stats["counts"] == {
        "received": 12,
        "completed": 12,
        "failed": 0,
        "cancelled": 0,
        "rejected": 0,
        "waiting": 0,
        "running": 0,
    }
    assert stats["total-tokens-handled"] == sum(n for _, n, _ in wanted)
    assert stats["batch-size"]["max"] <= (1 if mode == "nobatch" else 5)


def test_forty_concurrent_requests_run_in_one_batch(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with (
        serving(tmp_path, hash_model={HOLD: hold}, max_batch_size=40) as server,
        clients(40) as call,
    ):
        answers = [call(server.ask, f"request {i}", 100) for i in range(40)]
        server.reaches(received=40)
        hold.unlink()
        assert all(answer.result().status_code == 200 for answer in answers)
        assert server.stats()["batch-size"]["max"] == 40


def test_a_stream_arrives_while_it_is_generated(server: Server) -> None:
    """Not all at once at the end: the first event is here while the request still runs."""
    with requests.post(
        f"{server.url}/inference",
        json={"prompt": "x", "num_tokens": 900, "stream": True},
        stream=True,
        timeout=PATIENCE_S,
    ) as answer:
        lines = answer.iter_lines()  # kept, since its end would close the connection
        next(lines)
        assert server.counts()["running"] == 1
    server.reaches(running=0)


def test_a_client_of_http_1_0_has_a_stream_without_chunks(server: Server) -> None:
    body = json.dumps({"prompt": "x", "num_tokens": 20, "stream": True, "seed": 3}).encode()
    head = (
        "POST /inference HTTP/1.0\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((server.config.host, server.config.port), timeout=30) as client:
        client.sendall(head.encode() + body)
        answer = client.makefile("rb").read()
    told, _, events = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in told
    *_, last = [json.loads(event.removeprefix(b"data: ")) for event in events.split(b"\n\n")[:-1]]
    assert last["generated"] == expected("x", 20, 3)


def test_without_a_seed_a_fresh_one_is_drawn_and_reported(server: Server) -> None:
    first, second = server.ask("x", 30).json(), server.ask("x", 30).json()
    assert first["seed"] != second["seed"]
    assert first["generated"] != second["generated"]
    again = server.ask("x", 30, seed=first["seed"]).json()
    assert again["generated"] == first["generated"]


def test_the_timing_of_an_answer_is_in_order(server: Server) -> None:
    timing = server.ask("x", 10).json()["timing"]
    assert 0 <= timing["queue_s"] < timing["ttft_s"] < timing["latency_s"]
    assert timing["tpot_s"] == pytest.approx((timing["latency_s"] - timing["ttft_s"]) / 9)
    assert server.ask("x", 1).json()["timing"]["tpot_s"] is None


def test_a_request_is_in_stats_before_its_answer_is_sent(server: Server) -> None:
    before = server.stats()
    for n in range(1, 20):
        server.ask("x", 1)
        after = server.stats()
        assert after["counts"]["completed"] == before["counts"]["completed"] + n
        assert after["total-tokens-handled"] == before["total-tokens-handled"] + n


def test_a_reset_starts_a_new_window(server: Server) -> None:
    server.ask("x", 3)
    assert requests.post(f"{server.url}/stats/reset", timeout=PATIENCE_S).status_code == 200
    assert server.counts()["received"] == 0
    server.ask("x", 7)
    assert server.stats()["total-tokens-handled"] == 7
    told = requests.get(f"{server.url}/stats/iterations", timeout=PATIENCE_S).json()
    rows = [dict(zip(told["columns"], row, strict=True)) for row in told["iterations"]]
    assert [row["tokens"] for row in rows] == [1] * 7
    assert all(row["start_s"] > 0 and row["rows"] == 1 and row["padding"] == 0 for row in rows)


def test_stats_say_what_runs_and_where(server: Server) -> None:
    stats = server.stats()
    assert (stats["mode"], stats["policy"]) == ("dynamic", "stall-free")
    assert stats["model"]["note"].startswith("next token = hash")
    assert stats["machine"].keys() == {"cpu", "cores", "memory_gib", "gpu", "torch", "python"}
    assert stats["options"] == json.loads(json.dumps(server.config.as_dict()))


def test_a_gpu_that_is_not_used_is_named_when_the_server_is_ready_and_in_stats(
    server: Server, tmp_path: Path
) -> None:
    def metrics(of: Server) -> str:
        return requests.get(f"{of.url}/metrics", timeout=PATIENCE_S).text

    assert "\neb_unused_gpu 0.0\n" in metrics(server)
    why = "CUDA graphs are not used: a replayed decode differs by 0.5 from one that is launched"
    with serving(tmp_path, hash_model={UNUSED_GPU: why}) as server:
        assert server.stats()["model"]["unused_gpu"] == why
        assert "\neb_unused_gpu 1.0\n" in metrics(server)
        eventually(lambda: "ready: " in server.log, "the line")
        (ready,) = [line for line in server.log.splitlines() if "ready: " in line]
        assert "WARNING" in ready
        assert ready.endswith(f"; {why}")
