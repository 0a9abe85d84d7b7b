"""The server over a model server, by HTTP: its clients notice nothing but time."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from pathlib import Path

import pytest
from requests import Response

from model_server.shards import Shards
from model_server.supervisor import Supervisor
from model_server.wire.access import Access
from tests.model_server.hash_shard import hash_shards
from tests.model_server.served import running, unix
from tests.support.process import clients, eventually, serving

REQUESTS, TOKENS = 4, 150


@pytest.mark.long
def test_answers_are_the_same_when_the_model_server_is_killed_meanwhile(tmp_path: Path) -> None:
    address = unix(tmp_path)
    shards = Shards(lambda _: hash_shards([address]), Access(), patience_s=5.0)
    supervisor = Supervisor([shards.group])
    with (
        running(supervisor),
        serving(tmp_path, hash_model={"HASH_ENDLESS": 1}, remote_model=address) as server,
        clients(REQUESTS) as submit,
    ):

        def ask() -> list[Future[Response]]:
            return [
                submit(server.ask, f"hello {i}", TOKENS, temperature=0) for i in range(REQUESTS)
            ]

        undisturbed = texts(ask())
        asked = ask()
        server.reaches(running=REQUESTS)
        os.kill(supervisor.processes[0].pid, signal.SIGKILL)
        eventually(lambda: server.health() == 503, "the server is not ready")
        assert texts(asked) == undisturbed


def texts(asked: list[Future[Response]]) -> list[str]:
    answers = [future.result() for future in asked]
    assert [answer.status_code for answer in answers] == [200] * REQUESTS
    return [answer.json()["completion"] for answer in answers]
