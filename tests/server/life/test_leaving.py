"""A client that leaves frees its place, wherever its request was."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import NATIVE, OPENAI, RESPONSES, TGI, body
from tests.support.hash_app import ENDLESS, HURRY, STEP_S
from tests.support.process import Server, serving
from tests.support.wire import send

BATCH = 4


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Whose generations end when they are complete, cancelled or stopped."""
    folder = tmp_path_factory.mktemp("leaving")
    options: dict[str, Any] = {"hash_model": {STEP_S: 0.02, ENDLESS: "1"}}
    with serving(folder, max_batch_size=BATCH, **options) as server:
        yield server


@pytest.fixture
def before(endless: Server) -> int:
    """How many had left."""
    endless.reaches(waiting=0, running=0)
    return endless.counts()["cancelled"]


def begin(server: Server, path: str = NATIVE, tokens: int = 1000, **fields: Any) -> socket.socket:
    return send(server, path, **body(path.removesuffix("_stream"), "x", tokens, **fields))


def read_answer(client: socket.socket) -> bytes:
    """Head and body of an answer with a Content-Length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < length:
        body += client.recv(65536)
    assert len(body) == length
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("path", "fields", "generations"),
    [
        (NATIVE, {}, 1),
        (NATIVE, {"stream": True}, 1),
        (OPENAI[0], {"n": 2}, 2),
        (OPENAI[1], {"n": 4, "stream": True}, 4),
        (RESPONSES, {}, 1),
        (RESPONSES, {"stream": True}, 1),
        (TGI, {}, 1),
        (TGI, {"stop": ["never"]}, 1),
        (TGI, {"best_of": 2, "do_sample": True}, 2),
        ("/generate_stream", {}, 1),
    ],
)
def test_one_that_leaves_while_running_frees_all_it_held(
    endless: Server, before: int, path: str, fields: dict[str, Any], generations: int
) -> None:
    client = begin(endless, path, 900, **fields)
    endless.reaches(running=generations)
    client.close()
    endless.reaches(running=0, cancelled=before + generations)
    assert endless.ask("next", 1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_leaves_the_queue_is_never_run(endless: Server, before: int, stream: bool) -> None:
    running = begin(endless, OPENAI[0], 900, n=BATCH)
    endless.reaches(running=BATCH)
    queued = begin(endless, stream=stream)
    endless.reaches(running=BATCH, waiting=1)
    queued.close()
    endless.reaches(running=BATCH, waiting=0, cancelled=before + 1)
    running.close()
    endless.reaches(running=0, cancelled=before + 1 + BATCH)


def test_one_that_leaves_in_the_middle_of_a_stream_is_noticed(endless: Server, before: int) -> None:
    client = begin(endless, stream=True)
    assert b"data:" in client.recv(4096) + client.recv(4096)
    client.close()
    endless.reaches(running=0, cancelled=before + 1)


def test_one_that_sends_its_next_request_early_is_not_taken_for_gone(
    endless: Server, before: int
) -> None:
    client = begin(endless, tokens=20)
    client.sendall(b"GET /health HTTP/1.1\r\nHost: [::]\r\n\r\n")
    with client:
        received = b""
        while b'"ready"' not in received:
            received += client.recv(65536)
    assert b'"num_tokens":20' in received
    assert endless.counts()["cancelled"] == before


def test_the_others_in_its_batch_do_not_notice(tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    with serving(tmp_path, hash_model={STEP_S: 0.02, HURRY: hurry}) as server:
        stays = begin(server)
        leaves = [begin(server, stream=stream) for stream in (True, False, True)]
        server.reaches(running=4)
        for client in leaves:
            client.close()
        server.reaches(running=1, cancelled=3)
        hurry.touch()
        with stays:
            assert b'"num_tokens":1000' in read_answer(stays)
