"""A model or a policy that hangs: its clients get their answers, and the server ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from app import POLICY_FOLDER
from serving.thread import FAILED
from tests.support.dialects import NATIVE, OPENAI, TGI, body
from tests.support.hash_app import ENDLESS, HOLD, LEAST_S
from tests.support.process import PATIENCE_S, Server, clients, eventually, serving

TIMEOUT_S = 1.5
CALLS = {
    "inference": (NATIVE, body(NATIVE)),
    "stream of inference": (NATIVE, body(NATIVE, stream=True)),
    "openai": (OPENAI[0], body(OPENAI[0], n=2)),
    "stream of openai": (OPENAI[1], body(OPENAI[1], stream=True)),
    "tgi": (TGI, body(TGI)),
    "stream of tgi": ("/generate_stream", body(TGI)),
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


@pytest.fixture(params=["model", "policy"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, dict[str, object]]:
    """Options of a server that hangs while the file `hold` is there."""
    env: dict[str, object] = {HOLD: tmp_path / "hold", ENDLESS: 1}
    if request.param == "model":
        return {"hash_model": env}
    (tmp_path / "hanging.py").write_text(POLICY)
    return {"hash_model": {**env, POLICY_FOLDER: tmp_path}, "policy": "hanging:Hanging"}  # type: ignore[dict-item]


def send(server: Server, path: str, asked: dict[str, object]) -> requests.Response:
    return requests.post(f"{server.url}{path}", json=asked, timeout=PATIENCE_S)


def test_requests_past_their_limit_get_504_while_the_server_hangs_and_it_continues(
    hanging: dict[str, object], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    with (
        serving(tmp_path, request_timeout=TIMEOUT_S, **hanging) as server,  # type: ignore[arg-type]
        clients(len(CALLS)) as call,
    ):
        hold.touch()
        answers = {name: call(send, server, *what) for name, what in CALLS.items()}
        for name, answer in answers.items():
            assert answer.result().status_code == 504, name
            assert "--request-timeout" in answer.result().text, name
        assert server.health() == 200
        hold.unlink()
        eventually(lambda: server.ask("x", 2).status_code == 200, "it continues")
        server.reaches(running=0, waiting=0)
        counts = server.counts()
        failed = counts["failed"]
        assert failed >= len(CALLS) + 1  # two choices
        assert counts["received"] == counts["completed"] + failed


def test_a_stream_whose_server_hangs_ends_with_an_error_at_its_limit(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    env = {HOLD: hold, ENDLESS: 1, "HASH_STEP_S": 0.02}
    with serving(tmp_path, hash_model=env, request_timeout=2 * TIMEOUT_S) as server:
        with requests.post(
            f"{server.url}{NATIVE}",
            json=body(NATIVE, tokens=1000, stream=True),
            stream=True,
            timeout=PATIENCE_S,
        ) as response:
            lines = response.iter_lines()
            assert next(lines).startswith(b'data: {"text"')
            hold.touch()
            *_, last = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        assert response.status_code == 200
        assert "--request-timeout" in last["error"]
        hold.unlink()
        server.reaches(running=0, failed=1)


def test_a_server_that_hangs_tells_its_clients_and_ends(
    hanging: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    hanging["hash_model"][LEAST_S] = 1.0
    hold = tmp_path / "hold"
    with (
        serving(tmp_path, **hanging) as server,  # type: ignore[arg-type]
        clients(3) as call,
    ):
        hold.touch()
        names = ("inference", "stream of openai", "tgi")
        answers = {name: call(send, server, *CALLS[name]) for name in names}
        eventually(lambda: server.health() == 503, "/health 503")
        for name, answer in answers.items():
            assert answer.result().status_code == 503, name
            assert "an iteration has not ended after" in answer.result().text, name
        assert server.process.wait(PATIENCE_S) == FAILED
        assert server.members() == []
        assert "the server failed and is shutting down: an iteration has not ended" in server.log
        assert "Traceback" not in server.log
