"""`/health` responds whatever other clients do, and whatever the system refuses."""

from __future__ import annotations

import contextlib
import socket
from contextlib import ExitStack
from pathlib import Path

import requests

from tests.support.hash_app import HOLD, NO_THREADS, byte_tokenizer
from tests.support.hashed import reference
from tests.support.process import PATIENCE_S, Server, clients, eventually, serving

LONG_S = 3600.0
PROBES = 150  # more than twice the number after which such clients stop four threads
MANY = 12  # more than there are threads before
PROMPT = byte_tokenizer().encode("hello")


def present(server: Server) -> int:
    counts = server.counts()
    return counts["waiting"] + counts["running"]


def status(server: Server, path: str) -> int:
    return requests.get(f"{server.url}{path}", timeout=PATIENCE_S).status_code


def text_of(tokens: list[int]) -> str:
    return b"".join(map(byte_tokenizer().token_bytes, tokens)).decode(errors="replace")


def deaf(server: Server) -> socket.socket:
    """A client that never reads, with little room for what it is sent."""
    client = socket.socket()
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        client.setsockopt(socket.SOL_SOCKET, buffer, 4096)
    client.connect((server.config.host, server.config.port))
    client.setblocking(False)
    return client


class Pipelining:
    """A client that sends one request after the other and reads no response."""

    def __init__(self, client: socket.socket, request: bytes) -> None:
        self._client = client
        self._request = request
        self._rest = b""

    def push(self) -> None:
        """As much as is taken now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._rest = self._rest or self._request
                self._rest = self._rest[self._client.send(self._rest) :]


def test_clients_that_pipeline_probes_and_never_read_delay_no_probe(tmp_path: Path) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    with serving(tmp_path, client_timeout=LONG_S) as server, ExitStack() as stack:
        pipelining = [Pipelining(stack.enter_context(deaf(server)), request) for _ in range(4)]
        for _ in range(PROBES):
            for client in pipelining:
                client.push()
            assert server.health() == 200
        assert status(server, "/metrics") == 200
    assert "Invalid request" not in server.log


def test_pipelined_probes_are_all_answered_to_a_client_that_reads_late(tmp_path: Path) -> None:
    """More than the buffers between them hold."""
    number = 60
    with serving(tmp_path) as server, deaf(server) as client:
        client.setblocking(True)
        client.settimeout(PATIENCE_S)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * (number - 1))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := client.recv(65536):
            received += piece
    assert received.count(b"HTTP/1.1 200 OK\r\n") == number
    for answer in received.split(b"HTTP/1.1 200 OK\r\n")[1:]:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert body.endswith(b"\n")


def test_a_request_for_which_the_system_has_no_thread_fails_alone(tmp_path: Path) -> None:
    refused, hold = tmp_path / "refused", tmp_path / "hold"
    hold.touch()
    with (
        serving(tmp_path, hash_model={NO_THREADS: refused, HOLD: hold}) as server,
        clients(2 * MANY) as call,
    ):
        before = [call(server.ask, "hello", 30, seed=i) for i in range(2)]
        eventually(lambda: present(server) == 2, "two requests")
        refused.touch()
        others = [call(server.ask, "hello", 30, seed=i) for i in range(MANY)]
        eventually(lambda: status(server, "/info") == 503, "all threads have requests")
        eventually(lambda: any(asked.done() for asked in others), "one that was refused")
        assert server.health() == 200
        refused.unlink()
        hold.unlink()
        assert [asked.result().status_code for asked in before] == [200, 200]
        statuses = set()
        for i, asked in [*enumerate(before), *enumerate(others)]:
            answer = asked.result()
            statuses.add(answer.status_code)
            if answer.status_code == 503:
                assert "no further thread" in answer.json()["error"]
                assert int(answer.headers["Retry-After"]) >= 1
            else:
                assert answer.json()["generated"] == text_of(reference(PROMPT, 30, seed=i))
        assert statuses == {200, 503}
        assert server.ask().status_code == 200
    assert "Traceback" not in server.log
