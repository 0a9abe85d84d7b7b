"""A client that stalls holds a thread no longer than `--client-timeout`; a slow one is served."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.server.hash_app import STEP_S
from tests.server.process import PATIENCE_S, Server, serving

TIMEOUT_S = 3.0
BEAT_S = 0.25  # of a slow client; far from the timeout on a machine that is busy
SLOW_S = 1.3 * TIMEOUT_S  # what a slow exchange takes in all


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("stalling")
    with serving(folder, hash_model={STEP_S: 0.03}, client_timeout=TIMEOUT_S) as server:
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection((server.config.host, server.config.port), timeout=PATIENCE_S)


def request(path: str, *, padding: int = 0, **fields: object) -> tuple[bytes, bytes]:
    """Head and body; `padding`: spaces at its end."""
    body = json.dumps(fields).encode() + b" " * padding
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def all_of(client: socket.socket) -> bytes:
    """Until the server closes."""
    received = b""
    while piece := client.recv(65536):
        received += piece
    return received


def test_half_a_head_ends_with_its_connection(hasty: Server) -> None:
    with connect(hasty) as client:
        client.sendall(b"POST /inference HTTP/1.1\r\nHost: te")
        assert all_of(client) == b""
    assert "Traceback" not in hasty.log


@pytest.mark.parametrize(
    ("path", "told"),
    [("/inference", b'"error":"'), ("/v1/completions", b'"message":"'), ("/generate", b"timeout")],
)
def test_half_a_body_is_answered_with_408(hasty: Server, path: str, told: bytes) -> None:
    head, body = request(path, prompt="x", num_tokens=1)
    with connect(hasty) as client:
        client.sendall(head + body[:5])
        answer = all_of(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert told in answer
    assert b"--client-timeout" in answer
    assert "Traceback" not in hasty.log


def test_a_client_that_stops_reading_is_dropped_and_its_requests_are_cancelled(
    hasty: Server,
) -> None:
    """Many choices with many logprobs: more than the kernel's buffers hold."""
    head, body = request(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "x"}],
        n=32,
        max_tokens=900,
        ignore_eos=True,
        stream=True,
        logprobs=True,
        top_logprobs=20,
    )
    before = hasty.counts()["cancelled"]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((hasty.config.host, hasty.config.port))
        client.sendall(head + body)
        hasty.reaches(running=32)
        hasty.reaches(running=0, cancelled=before + 32)
    assert "Traceback" not in hasty.log


def test_clients_that_stall_at_the_end_keep_nobody_waiting(hasty: Server) -> None:
    """gunicorn waits two seconds for each to close its side: not in the thread that accepts, where
    it would come to more than anybody's patience."""
    with ExitStack() as stack:
        stalled = [stack.enter_context(connect(hasty)) for _ in range(2 * int(PATIENCE_S))]
        for client in stalled:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        for client in stalled:
            assert all_of(client).startswith(b"HTTP/1.1 200 ")
        assert hasty.health() == 200


def test_a_slow_body_that_goes_on_is_read(hasty: Server) -> None:
    beats = int(SLOW_S / BEAT_S)
    head, body = request("/inference", padding=beats, prompt="x", num_tokens=3)
    start_s = time.monotonic()
    with connect(hasty) as client:
        client.sendall(head + body[:-beats])
        for _ in range(beats):
            time.sleep(BEAT_S)
            client.sendall(b" ")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - start_s > TIMEOUT_S


def test_a_long_stream_that_is_read_slowly_is_whole(hasty: Server) -> None:
    head, body = request("/inference", prompt="x", num_tokens=130, stream=True, seed=1)
    start_s = time.monotonic()
    with connect(hasty) as client:
        client.sendall(head + body)
        received = b""
        while b'"done":true' not in received:
            received += client.recv(512)
            time.sleep(0.02)
    assert time.monotonic() - start_s > TIMEOUT_S
    assert sum(map(int, re.findall(rb'"tokens":([0-9]+)', received))) == 130
