"""Clients that stall or are slow hold no thread, and are dropped after `--client-timeout`;
`/health` responds whatever they do."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import requests

from api.jobs.files import MOST_AT_ONCE
from tests.support.process import PATIENCE_S, Server, connected, eventually, serving, shared
from tests.support.wire import all_of, post

TIMEOUT_S, LONG_S = 3.0, 3600.0
BEAT_S = 0.1  # of a slow client


hasty = shared(hash_model={"step_s": 0.03}, client_timeout=TIMEOUT_S)


HALF = b"POST /inference HTTP/1.1\r\nHost: [:"
UPLOAD = (
    b"POST /v1/files HTTP/1.1\r\nHost: [::]\r\nContent-Length: %d\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    b"--x\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n{"
)


def half(path: str) -> bytes:
    head, body = post(path, prompt="x", num_tokens=1)
    return head + body[:5]


def open_from(server: Server, port: int) -> bool:
    """Whether the server has a connection of this client's port."""
    found = [psutil.Process(pid).net_connections("tcp") for pid in server.members()]
    return any(c.raddr and c.raddr.port == port for connections in found for c in connections)


BEGUN = [(HALF, b""), *((half(path), told) for path, told in (("/inference", b'"error":"'),
         ("/generate", b"timeout"))), (UPLOAD % (99 * 2**20), b'"message":"')]  # fmt: skip


def test_half_a_request_is_answered_with_408_and_half_a_head_ends_with_its_connection(
    hasty: Server,
) -> None:
    stalled = [connected(hasty) for _ in BEGUN]
    for client, (begun, _) in zip(stalled, BEGUN, strict=True):
        client.sendall(begun)
    for client, (_, told) in zip(stalled, BEGUN, strict=True):
        answer = all_of(client)
        if told:
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert told in answer
            assert b"--client-timeout" in answer
        else:
            assert answer == b""
    assert "Traceback" not in hasty.log


def test_a_client_that_stops_reading_is_dropped_and_its_requests_are_cancelled(
    hasty: Server,
) -> None:
    """Many choices with many logprobs: more than the kernel's buffers hold. It keeps no other
    stream waiting."""
    head, body = post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "x"}],
        n=31,
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
        hasty.reaches(running=31)
        assert '"done":true' in hasty.ask("x", 130, seed=1, stream=True).text
        hasty.reaches(running=0, cancelled=before + 31)
    assert "Traceback" not in hasty.log


@pytest.mark.parametrize(
    ("begun", "status"),
    [(b"GET /health HTTP/1.1\r\nX-Slow: ", b""), (b"".join(post("/inference"))[:-2], b"408")],
)
def test_a_request_sent_byte_by_byte_ends_at_its_timeout(
    hasty: Server, begun: bytes, status: bytes
) -> None:
    with connected(hasty) as client:
        client.sendall(begun.replace(b"Content-Length: 2", b"Content-Length: 2000"))
        client.settimeout(BEAT_S)
        received = b""
        while not received:
            try:
                received = client.recv(65536) or b"an end"
            except TimeoutError:  # no answer yet
                client.sendall(b"x")
    assert received == b"an end" if not status else received.split()[1] == status
    assert "Traceback" not in hasty.log


PROBES = 150  # more than twice the number after which such clients stop four threads


def deaf(server: Server) -> socket.socket:
    """A client that never reads, with little room for what it is sent."""
    client = socket.socket()
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        client.setsockopt(socket.SOL_SOCKET, buffer, 4096)
    client.connect((server.config.host, server.config.port))
    client.setblocking(False)
    return client


def test_more_slow_clients_than_threads_and_pipelining_ones_that_never_read_delay_no_other(
    tmp_path: Path,
) -> None:
    probe = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    with (
        serving(tmp_path, max_batch_size=1, max_waiting=1, client_timeout=LONG_S) as server,
        ExitStack() as stack,
    ):
        head, body = post("/inference", prompt="x", num_tokens=3)
        for _ in range(2 * server.config.threads):
            for begun in (head[:20], head + body[:5]):
                stack.enter_context(connected(server)).sendall(begun)
        uploads = [stack.enter_context(connected(server)) for _ in range(MOST_AT_ONCE + 1)]
        for client in uploads:
            client.sendall(UPLOAD % (99 * 2**20))
        answered, _, _ = select.select(uploads, [], [], PATIENCE_S)  # in no order of arrival
        assert [all_of(client).split()[1] for client in answered] == [b"429"]
        pipelining = {stack.enter_context(deaf(server)): b"" for _ in range(4)}
        for _ in range(PROBES):
            for client, rest in pipelining.items():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sent = client.send(rest := rest or probe)
                        pipelining[client] = rest = rest[sent:]
            assert server.health() == 200
        assert requests.get(f"{server.url}/metrics", timeout=PATIENCE_S).status_code == 200
        assert server.ask().status_code == 200
        assert "Invalid request" not in server.log


def test_a_long_stream_arrives_while_it_is_generated_and_is_whole_if_it_is_read_slowly(
    hasty: Server,
) -> None:
    head, body = post("/inference", prompt="x", num_tokens=130, stream=True, seed=1)
    start_s = time.monotonic()
    with connected(hasty) as client:
        client.sendall(head + body)
        received = b""
        while b'"tokens":' not in received:
            received += client.recv(512)
        assert hasty.counts()["running"] == 1
        while b'"done":true' not in received:
            received += client.recv(512)
            time.sleep(0.02)
    assert time.monotonic() - start_s > TIMEOUT_S
    assert sum(map(int, re.findall(rb'"tokens":([0-9]+)', received))) == 130


@pytest.mark.parametrize("begun", [b"", HALF], ids=["nothing", "half a head"])
def test_a_connection_that_its_client_closes_is_closed_at_once(
    tmp_path: Path, begun: bytes
) -> None:
    with serving(tmp_path, client_timeout=LONG_S) as server:
        client = connected(server)
        client.sendall(begun)
        port = client.getsockname()[1]
        eventually(lambda: open_from(server, port), "the connection is accepted")
        client.close()
        eventually(lambda: not open_from(server, port), "the connection is closed")
