"""A model or a policy that hangs: its clients get their answers, and the server ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from app import POLICY_FOLDER
from serving.thread import FAILED
from tests.support.dialects import NATIVE, OPENAI, TGI, body
from tests.support.hash_app import ENDLESS, HOLD, LEAST_S, STEP_S
from tests.support.process import PATIENCE_S, Server, clients, eventually, serving

CALLS = {
    "inference": (NATIVE, body(NATIVE)),
    "openai": (OPENAI[0], body(OPENAI[0], n=2)),
    "stream of openai": (OPENAI[1], body(OPENAI[1], stream=True)),
    "tgi": (TGI, body(TGI)),
}
POLICY = """
import os, time
from scheduling.policies.orca import Orca

class Hanging(Orca):
    def plan(self, view):
        while os.path.exists(os.environ["HASH_HOLD"]):
            time.sleep(0.005)
        return super().plan(view)
"""


def send(server: Server, path: str, asked: dict[str, object]) -> requests.Response:
    return requests.post(f"{server.url}{path}", json=asked, timeout=PATIENCE_S)


def test_requests_past_their_limit_are_told_so_while_the_server_hangs_and_it_continues(
    tmp_path: Path,
) -> None:
    hold = tmp_path / "hold"
    model = {HOLD: hold, ENDLESS: 1, STEP_S: 0.02}
    with (
        serving(tmp_path, hash_model=model, request_timeout=3.0) as server,
        clients(len(CALLS)) as call,
    ):
        with requests.post(
            f"{server.url}{NATIVE}",
            json=body(NATIVE, tokens=1000, stream=True),
            stream=True,
            timeout=PATIENCE_S,
        ) as begun:
            lines = begun.iter_lines()
            assert next(lines).startswith(b'data: {"text"')
            hold.touch()
            answers = {name: call(send, server, *what) for name, what in CALLS.items()}
            *_, last = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        assert "--request-timeout" in last["error"]
        for name, answer in answers.items():
            assert answer.result().status_code == 504, name
            assert "--request-timeout" in answer.result().text, name
        assert server.health() == 200
        hold.unlink()
        eventually(lambda: server.ask("x", 2).status_code == 200, "it continues")
        server.reaches(running=0, waiting=0)
        counts = server.counts()
        failed = counts["failed"]
        assert failed >= len(CALLS) + 2  # two choices, and the stream
        assert counts["received"] == counts["completed"] + failed


@pytest.mark.parametrize("what", ["model", "policy"])
def test_a_server_that_hangs_tells_its_clients_and_ends(what: str, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    model: dict[str, object] = {HOLD: hold, ENDLESS: 1, LEAST_S: 1.0}
    (tmp_path / "hanging.py").write_text(POLICY)
    own: Any = {} if what == "model" else {"policy": "hanging:Hanging"}
    with (
        serving(tmp_path, hash_model={**model, POLICY_FOLDER: tmp_path}, **own) as server,
        clients(len(CALLS)) as call,
    ):
        hold.touch()
        answers = {name: call(send, server, *asked) for name, asked in CALLS.items()}
        eventually(lambda: server.health() == 503, "/health 503")
        for name, answer in answers.items():
            assert answer.result().status_code == 503, name
            assert "an iteration has not ended after" in answer.result().text, name
        assert server.process.wait(PATIENCE_S) == FAILED
        assert server.members() == []
        assert "the server failed and is shutting down: an iteration has not ended" in server.log
        assert "Traceback" not in server.log
