"""Many clients of every kind for a while, in every mode; then the books must close."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import requests

from serving.config import MODES
from tests.api.test_serving import expected
from tests.support.hash_app import STEP_S
from tests.support.process import Server, clients, serving
from tests.support.wire import send

REQUESTS = 20_000
CLIENTS = 150


def behave(server: Server, number: int) -> str:
    """One client: patient, streaming, wrong, or leaving; returns what became of its request."""
    chance = random.Random(number)
    tokens = chance.randint(1, 60)
    kind = chance.choice(["whole", "whole", "stream", "leave", "wrong"])
    if kind == "leave":
        stream = chance.random() < 0.5
        client = send(server, "/inference", prompt="x", num_tokens=900, stream=stream)
        client.settimeout(chance.random() / 10)
        try:
            client.recv(1)
        except TimeoutError:
            pass
        finally:
            client.close()
        return kind
    if kind == "wrong":
        answer = server.ask("", tokens)
        if answer.status_code == 429:  # a full server does not read what it refuses
            return "rejected"
        assert answer.status_code == 400
        return kind
    answer = server.ask(f"{number}", tokens, seed=number, stream=kind == "stream")
    if answer.status_code == 429:
        return "rejected"
    assert answer.status_code == 200
    if kind == "whole":
        assert answer.json()["generated"] == expected(f"{number}", tokens, number)
    else:
        assert '"done":true' in answer.text
    return "completed"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_no_request_is_lost_and_all_totals_agree(mode: str, tmp_path: Path) -> None:
    with (
        serving(tmp_path, mode, {STEP_S: 0.0005}, max_batch_size=32, max_waiting=64) as server,
        clients(CLIENTS) as call,
    ):
        futures = [call(behave, server, number) for number in range(REQUESTS)]
        ends = [future.result() for future in futures]
        server.reaches(waiting=0, running=0)
        counts = server.counts()
        assert counts["completed"] == ends.count("completed")
        assert counts["failed"] == 0
        ended = counts["completed"] + counts["cancelled"] + counts["rejected"]
        assert counts["received"] == ended
        assert counts["cancelled"] > 0
        assert "CRITICAL" not in server.log
        assert requests.get(f"{server.url}/health", timeout=60).status_code == 200
