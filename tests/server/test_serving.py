"""Requests over a real socket: how they arrive, and by what names."""

from __future__ import annotations

import json

import pytest
import requests

from tests.api.test_serving import expected
from tests.support.process import PATIENCE_S, Server, connected
from tests.support.wire import all_of

EVIL = "evil.example"


def test_a_stream_arrives_while_it_is_generated(server: Server) -> None:
    """Not all at once at the end: the first event is here while the request still runs."""
    with requests.post(
        f"{server.url}/inference",
        json={"prompt": "x", "num_tokens": 900, "stream": True},
        stream=True,
        timeout=PATIENCE_S,
    ) as answer:
        lines = answer.iter_lines()  # kept, since its end would close the connection
        next(lines)
        assert server.counts()["running"] == 1
    server.reaches(running=0)


def test_a_client_of_http_1_0_has_a_stream_without_chunks(server: Server) -> None:
    body = json.dumps({"prompt": "x", "num_tokens": 20, "stream": True, "seed": 3}).encode()
    head = (
        b"POST /inference HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with connected(server) as client:
        client.sendall(head % len(body) + body)
        told, _, events = all_of(client).partition(b"\r\n\r\n")
    assert b"chunked" not in told
    *_, last = [json.loads(event.removeprefix(b"data: ")) for event in events.split(b"\n\n")[:-1]]
    assert last["generated"] == expected("x", 20, 3)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /info HTTP/1.0\r\n", 200),
        ("GET /info HTTP/1.1\r\nHost: LOCALHOST.:1\r\n", 200),
        ("GET /info HTTP/1.1\r\nHost: [::1]:8500\r\n", 200),
        (f"GET http://{EVIL}/info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET http://localhost/info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET /info HTTP/1.1\r\nHost: localhost\r\nHost: {EVIL}\r\n", 422),
        (f"OPTIONS /info HTTP/1.1\r\nHost: {EVIL}\r\n", 403),
        (f"GET /info HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: {EVIL}\r\n", 200),
        (f"GET /info HTTP/1.1\r\nHost: {EVIL}\r\nX-Forwarded-Host: localhost\r\n", 403),
    ],
)
def test_the_host_of_a_request_is_its_host_field(server: Server, head: str, status: int) -> None:
    with connected(server) as client:
        client.sendall(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        assert int(all_of(client).split(b" ", 2)[1]) == status
