"""How a server starts to be there and ceases to: loading, draining, Ctrl-C, what cannot load or
hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from serving.thread import FAILED
from tests.support.dialects import NATIVE, OPENAI, RESPONSES, TGI, body
from tests.support.official import official
from tests.support.process import (
    PATIENCE_S,
    clients,
    connected,
    eventually,
    free_port,
    serving,
    starting,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_still_loading_ends_at_once(tmp_path: Path, number: int) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with starting(tmp_path, hash_model={"load_gate": gate}) as server:
        eventually(lambda: server.health() == 503, "the server answers")
        os.killpg(server.process.pid, number)
        assert server.process.wait(PATIENCE_S) == 0
        assert server.members() == []


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_message(tmp_path: Path) -> None:
    with starting(
        tmp_path, hash_model={"load_error": "no such weights; allowed: better"}
    ) as server:
        assert server.process.wait(PATIENCE_S) != 0
        assert server.log.count("no such weights; allowed: better") == 1
        assert "Traceback" not in server.log
        assert server.members() == []


def test_a_lost_device_fails_all_requests_with_the_reason_and_ends_the_server(
    tmp_path: Path,
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    model = {"hold": hold, "lost_from": 1}
    with serving(tmp_path, hash_model=model, max_batch_size=1) as server, clients(2) as call:
        running = call(server.ask)
        server.reaches(running=1)
        waiting = call(server.ask)
        server.reaches(running=1, waiting=1)
        hold.unlink()
        assert running.result().status_code == 500
        assert waiting.result().status_code == 503
        for answer in (running, waiting):
            assert "an assertion failed in a kernel" in answer.result().json()["error"]
        assert server.process.wait(PATIENCE_S) != 0
        assert server.members() == []
        assert "the device is lost: an assertion failed in a kernel" in server.log
        assert server.log.count("\n") < 60  # nothing was started again


TOKENS = 20
RESPONSE: dict[str, Any] = {"model": "embedded", "input": "x", "max_output_tokens": TOKENS}
COUNTED: dict[str, Any] = {"stream_options": {"include_usage": True}}
GENERATION = body(TGI, tokens=TOKENS, details=True)
WAITED_FOR = [  # with what a complete response says
    (NATIVE, body(NATIVE, tokens=TOKENS), f'"num_tokens":{TOKENS}'),
    (NATIVE, body(NATIVE, tokens=TOKENS, stream=True), '"done":true'),
    *(
        (path, body(path, tokens=TOKENS, **more), f'_tokens":{TOKENS}')
        for path in (*OPENAI, RESPONSES)
        for more in ({}, {**(COUNTED if path in OPENAI else {}), "stream": True})
    ),
    *((path, GENERATION, f'"generated_tokens":{TOKENS}') for path in (TGI, "/generate_stream")),
]
LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def test_sigterm_loses_nothing_that_was_accepted_and_refuses_new_requests(tmp_path: Path) -> None:
    """Not even where another holds the database when the last token has been generated."""
    hold, database, port = tmp_path / "hold", tmp_path / "data" / "jobs.db", free_port()
    hold.touch()
    model, begun, ended = {"hold": hold, "endless": 1}, threading.Event(), threading.Event()

    def form() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        yield bytes(2**23)  # more than the kernel holds and than is gathered without a handler
        begun.set()
        ended.wait(PATIENCE_S)
        yield b'\r\n--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--'

    with (
        serving(tmp_path, hash_model=model, max_batch_size=4, port=port) as server,
        clients(len(WAITED_FOR) + 1) as call,
    ):

        def post(path: str, **how: Any) -> requests.Response:
            return requests.post(server.url + path, timeout=PATIENCE_S, **how)

        upload = call(post, "/v1/files", data=form(), headers=FORM)
        assert begun.wait(PATIENCE_S)
        answers = [call(post, path, json=body) for path, body, _ in WAITED_FOR]
        server.reaches(received=len(WAITED_FOR))
        create: Any = partial(official(server).responses.create, background=True, **RESPONSE)
        kept = [create(**more).id for more in ({}, LOGPROBS) for _ in range(2)]
        with create(stream=True) as events:
            kept.append(next(iter(events)).response.id)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.health() == 503, "/health 503")
        refused = server.ask()
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            hold.unlink()
            assert WAITED_FOR[0][-1] in answers[0].result().text
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(2.0)  # it cannot have stored them
        ended.set()
        for (path, sent, says), answer in zip(WAITED_FOR, answers, strict=True):
            assert says in answer.result().text, (path, sent)
        assert upload.result().status_code == 200, upload.result().text
        assert server.process.wait(PATIENCE_S) == 0
        assert server.members() == []
    with serving(tmp_path, port=port) as server:
        client = official(server)
        assert [file.id for file in client.files.list()] == [upload.result().json()["id"]]
        ends = [client.responses.retrieve(one) for one in kept]
        assert {(one.status, one.usage and one.usage.output_tokens) for one in ends} == {
            ("incomplete", TOKENS)
        }


def test_a_request_that_outlasts_the_drain_timeout_ends_with_an_error(tmp_path: Path) -> None:
    with (
        serving(tmp_path, hash_model={"step_s": 0.05}, drain_timeout=0.2) as server,
        clients(2) as call,
    ):
        whole = call(server.ask, "x", 1000)
        streamed = call(server.ask, "x", 1000, stream=True)
        server.reaches(running=2)
        server.process.send_signal(signal.SIGTERM)
        assert whole.result().status_code == 503
        assert "shutting down" in whole.result().json()["error"]
        assert "shutting down" in streamed.result().text.strip().split("\n\n")[-1]
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])  # the latter: of a terminal
def test_an_idle_server_waits_for_no_viewer_and_no_connection_that_never_sent_anything(
    tmp_path: Path, number: int
) -> None:
    with serving(tmp_path, drain_timeout=PATIENCE_S) as server, connected(server):
        viewer = requests.get(f"{server.url}/watch/events", stream=True, timeout=PATIENCE_S)
        assert next(viewer.iter_lines()) == b"event: hello"
        os.killpg(server.process.pid, number)
        assert server.process.wait(PATIENCE_S / 2) == 0
        viewer.close()


@pytest.mark.parametrize("step_s", [0.05, 3600.0])
def test_ctrl_c_ends_waiting_requests_with_an_error_and_leaves_no_process(
    tmp_path: Path, step_s: float
) -> None:
    """Also in the middle of a long iteration, whose clients are cut off. The others have their
    responses within a tenth of a second: they are few, as other tests may run beside."""
    number = 4
    with serving(tmp_path, hash_model={"step_s": step_s}) as server, clients(number) as call:
        waiting = [call(server.ask, "x", 1000) for _ in range(number)]
        server.reaches(received=number)
        eventually(lambda: server.counts()["running"] > 0, "an iteration")
        server.interrupt()
        server.process.wait(PATIENCE_S)
        assert server.members() == []
        for answer in waiting:
            if step_s < 1:
                assert answer.result().status_code == 503
            else:
                assert isinstance(answer.exception(), requests.ConnectionError)


CALLS: Any = ((NATIVE, {}), (OPENAI[0], {"n": 2}), (OPENAI[1], {"stream": True}), (TGI, {}))


def test_a_server_that_hangs_tells_its_clients_and_ends(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    model: dict[str, object] = {"hold": hold, "endless": 1, "least_s": 1.0}

    def send(path: str, fields: dict[str, Any]) -> requests.Response:
        asked = body(path, **fields)
        return requests.post(f"{server.url}{path}", json=asked, timeout=PATIENCE_S)

    with serving(tmp_path, hash_model=model) as server, clients(len(CALLS)) as call:
        hold.touch()
        answers = [call(send, *asked) for asked in CALLS]
        eventually(lambda: server.health() == 503, "/health 503")
        for answer in answers:
            assert answer.result().status_code == 503
            assert "an iteration has not ended after" in answer.result().text
        assert server.process.wait(PATIENCE_S) == FAILED
        assert server.members() == []
        assert "the server failed and is shutting down: an iteration has not ended" in server.log
        assert "Traceback" not in server.log
