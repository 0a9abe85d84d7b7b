"""A client that leaves frees its place, wherever its request was."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.config import MODES
from tests.server.hash_app import HOLD, HURRY, STEP_S
from tests.server.process import Server, serving
from tests.server.wire import send


@pytest.fixture(scope="module", params=MODES)
def one_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("leaving")
    with serving(folder, request.param, {STEP_S: 0.02}, max_batch_size=1, max_wait_ms=0) as server:
        yield server


@pytest.fixture
def before(one_place: Server) -> dict[str, int]:
    one_place.reaches(waiting=0, running=0)
    return one_place.counts()


def begin(server: Server, *, stream: bool, num_tokens: int = 1000) -> socket.socket:
    return send(server, "/inference", prompt="x", num_tokens=num_tokens, stream=stream)


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


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_leaves_while_running_frees_its_place(
    one_place: Server, before: dict[str, int], stream: bool
) -> None:
    client = begin(one_place, stream=stream)
    one_place.reaches(running=1)
    client.close()
    one_place.reaches(running=0, cancelled=before["cancelled"] + 1)
    assert one_place.ask("next", 1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_leaves_the_queue_is_never_run(
    one_place: Server, before: dict[str, int], stream: bool
) -> None:
    running = begin(one_place, stream=False)
    one_place.reaches(running=1)
    queued = begin(one_place, stream=stream)
    one_place.reaches(running=1, waiting=1)
    queued.close()
    one_place.reaches(running=1, waiting=0, cancelled=before["cancelled"] + 1)
    running.close()
    one_place.reaches(running=0, cancelled=before["cancelled"] + 2)


def test_one_that_leaves_in_the_middle_of_a_stream_is_noticed(
    one_place: Server, before: dict[str, int]
) -> None:
    client = begin(one_place, stream=True)
    assert b"data:" in client.recv(4096) + client.recv(4096)
    client.close()
    one_place.reaches(running=0, cancelled=before["cancelled"] + 1)


def test_one_that_leaves_during_prefill_frees_its_place(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with serving(tmp_path, hash_model={STEP_S: 0.5, HOLD: hold}) as server:
        client = begin(server, stream=False)
        server.reaches(running=1)
        assert server.stats()["batch-size"]["max"] == 0  # the first iteration has not ended
        client.close()
        hold.unlink()
        server.reaches(running=0, cancelled=1)
        assert server.stats()["total-tokens-handled"] <= 2


def test_one_that_sends_its_next_request_early_is_not_taken_for_gone(
    one_place: Server, before: dict[str, int]
) -> None:
    client = begin(one_place, num_tokens=20, stream=False)
    client.sendall(b"GET /health HTTP/1.1\r\nHost: [::]\r\n\r\n")
    with client:
        received = b""
        while b'"ready"' not in received:
            received += client.recv(65536)
    assert b'"num_tokens":20' in received
    assert one_place.counts()["cancelled"] == before["cancelled"]


def test_the_others_in_its_batch_do_not_notice(tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    with serving(tmp_path, hash_model={STEP_S: 0.02, HURRY: hurry}) as server:
        stays = begin(server, stream=False)
        leaves = [begin(server, stream=stream) for stream in (True, False, True)]
        server.reaches(running=4)
        for client in leaves:
            client.close()
        server.reaches(running=1, cancelled=3)
        hurry.touch()
        with stays:
            assert b'"num_tokens":1000' in read_answer(stays)
