"""Bodies beyond the limit are refused, however they are sent; the server continues to serve."""

from __future__ import annotations

import time

import pytest
import requests

from tests.support.process import PATIENCE_S, Server, connected
from tests.support.wire import head


def test_a_body_as_large_as_the_limit_is_read(server: Server) -> None:
    body = b'{"prompt": "x", "num_tokens": 1}'.ljust(server.config.max_body_bytes)
    answer = requests.post(
        f"{server.url}/inference",
        data=body,
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("mib", [8, 100])
@pytest.mark.parametrize("path", ["/inference", "/v1/completions", "/nowhere"])
def test_a_client_that_writes_a_large_body_before_it_reads_is_not_left_hanging(
    server: Server, mib: int, path: str
) -> None:
    with connected(server) as client:
        try:
            client.sendall(head(path, mib << 20) + bytes(mib << 20))
            answer = client.recv(65536)
        except ConnectionError:  # on a machine that cannot take so many bytes in a second
            return
        assert answer.startswith(b"HTTP/1.1 404 " if path == "/nowhere" else b"HTTP/1.1 413 ")
        assert b"\r\nConnection: close\r\n" in answer


def test_a_client_that_never_stops_sending_is_cut_off(server: Server) -> None:
    def send_on() -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            client.sendall(bytes(1000))

    with connected(server) as client:
        client.sendall(head("/inference", 99_999_999_999))
        with pytest.raises(ConnectionError):
            send_on()


def test_a_body_over_the_limit_without_a_length_gets_413(server: Server) -> None:
    answer = requests.post(
        f"{server.url}/inference",
        data=iter([b"[" * 65536] * (server.config.max_body_bytes // 65536 + 1)),
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 413
