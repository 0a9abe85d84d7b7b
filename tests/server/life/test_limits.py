"""A request that can never fit is refused on arrival; the server continues to serve others."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import requests

from tests.server.hash_app import FAIL_ON, HOLD, STEP_S
from tests.server.process import PATIENCE_S, Server, clients, connected, eventually, serving
from tests.server.wire import head


def test_beyond_the_queue_a_request_gets_429_and_when_to_come_back(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with (
        serving(tmp_path, hash_model={HOLD: hold}, max_batch_size=1, max_waiting=2) as server,
        clients(3) as call,
    ):
        answers = [call(server.ask, "x", 150)]
        server.reaches(running=1)
        answers += [call(server.ask, "x", 2) for _ in range(2)]
        server.reaches(running=1, waiting=2)
        refused = server.ask("x", 1)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert "--max-waiting" in refused.json()["error"]
        assert server.ask("x", 1, stream=True).status_code == 429
        assert server.health() == 200
        hold.unlink()
        assert [answer.result().status_code for answer in answers] == [200, 200, 200]
        counts = server.counts()
        assert (counts["received"], counts["completed"], counts["rejected"]) == (5, 3, 2)


def test_a_burst_beyond_the_limits_is_answered_to_the_last_request(tmp_path: Path) -> None:
    """Nothing hides in the backlog: every request is served or refused, and the books close."""
    with (
        serving(tmp_path, hash_model={STEP_S: 0.005}, max_batch_size=4, max_waiting=8) as server,
        clients(60) as call,
    ):
        statuses = [a.result().status_code for a in [call(server.ask, "x", 20) for _ in range(60)]]
        assert set(statuses) <= {200, 429}
        counts = server.counts()
        assert counts["received"] == 60
        assert counts["completed"] == statuses.count(200) >= 12
        assert counts["rejected"] == statuses.count(429)


def test_a_failing_iteration_fails_its_requests_and_no_others(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "3,4,7"}) as server:
        for number, stream in ((3, False), (4, True)):
            failed = server.ask("x", 10, stream=stream)
            assert failed.status_code == 500
            assert f"iteration {number} fails" in failed.json()["error"]
        answer = server.ask("x", 10, stream=True)
        assert answer.status_code == 200
        *sent, last = [json.loads(line[6:]) for line in answer.text.split("\n") if line]
        assert sum(event["tokens"] for event in sent) == 2
        assert last.keys() == {"error"}
        assert "iteration 7 fails" in last["error"]
        assert server.ask("x", 10).status_code == 200
        assert server.counts()["failed"] == 3


def test_a_body_as_large_as_the_limit_is_read(server: Server) -> None:
    body = b'{"prompt": "x", "num_tokens": 1}'.ljust(server.config.max_body_bytes)
    answer = requests.post(
        f"{server.url}/inference",
        data=body,
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("mib", [8, 100])
@pytest.mark.parametrize("path", ["/inference", "/v1/completions", "/nowhere"])
def test_a_client_that_writes_a_large_body_before_it_reads_is_not_left_hanging(
    server: Server, mib: int, path: str
) -> None:
    with connected(server) as client:
        try:
            client.sendall(head(path, mib << 20) + bytes(mib << 20))
            answer = client.recv(65536)
        except ConnectionError:  # on a machine that cannot take so many bytes in a second
            return
        assert answer.startswith(b"HTTP/1.1 404 " if path == "/nowhere" else b"HTTP/1.1 413 ")
        assert b"\r\nConnection: close\r\n" in answer


def test_a_client_that_never_stops_sending_is_cut_off(server: Server) -> None:
    def send_on() -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            client.sendall(bytes(1000))

    with connected(server) as client:
        client.sendall(head("/inference", 99_999_999_999))
        with pytest.raises(ConnectionError):
            send_on()


def test_a_body_over_the_limit_without_a_length_gets_413(server: Server) -> None:
    answer = requests.post(
        f"{server.url}/inference",
        data=iter([b"[" * 65536] * (server.config.max_body_bytes // 65536 + 1)),
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 413


def test_a_static_batch_forms_for_the_configured_time(tmp_path: Path) -> None:
    """Two requests, the second sent once the first is seen waiting, share one batch."""
    with (
        serving(tmp_path, "static", max_wait_ms=60_000, max_batch_size=2) as server,
        clients(2) as call,
    ):
        first = call(server.ask, "a", 3)
        server.reaches(waiting=1)
        second = call(server.ask, "b", 5)
        assert first.result().status_code == second.result().status_code == 200
        assert first.result().json()["timing"]["queue_s"] < 60  # it left when it was full
        assert server.stats()["batch-size"]["histogram"] == {"2": 5}


def test_a_static_response_leaves_when_configured(tmp_path: Path) -> None:
    for release in ("batch", "request"):
        with (
            serving(
                tmp_path,
                "static",
                {STEP_S: 0.01},
                max_wait_ms=60_000,
                max_batch_size=2,
                static_release=release,
            ) as server,
            clients(2) as call,
        ):
            long = call(server.ask, "a", 100)
            short = call(server.ask, "b", 2)
            timings = [f.result().json()["timing"] for f in (short, long)]
            # from the batch's start: how far apart they arrived is the machine's affair
            spans_s = [timing["latency_s"] - timing["queue_s"] for timing in timings]
            ratio = spans_s[0] / spans_s[1]
            assert ratio > 0.9 if release == "batch" else ratio < 0.5
            eventually(lambda: server.counts()["running"] == 0, "idle")
