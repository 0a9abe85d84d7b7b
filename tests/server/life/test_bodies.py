"""Requests over a real socket: how they arrive and by what names. Bodies are gathered only for
clients with a key, within a limit over all of them; what is beyond a limit is refused."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
import requests

from tests.api.test_requests import expected
from tests.support.process import PATIENCE_S, Server, connected, eventually, shared
from tests.support.wire import all_of, head
from web.requests import AT_ONCE

MIB = 2**20
MOST = MIB + MIB // 4  # of all bodies together
LONG_S = 3600.0
KEYS = {"Authorization": "Bearer one"}
KEY = "authorization: bearer  two"


guarded = shared(api_key="one,two", client_timeout=LONG_S, max_held_bytes=MOST)


def test_without_a_key_a_body_is_not_waited_for(guarded: Server) -> None:
    for path, lines, status in (
        ("/v1/completions", ("Authorization: Bearer three",), 401),
        ("/generate", ("Expect: 100-continue",), 401),
        ("/health", (), 405),  # open to all
    ):
        with connected(guarded) as client:
            client.sendall(head(path, MIB, *lines) + b"{")
            told, _, body = all_of(client).partition(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nConnection: close" in told
        assert "error" in json.loads(body)


def drip(server: Server, begun: bytes) -> bytes:
    """Sends a body byte by byte until there is an answer."""
    with connected(server) as client:
        client.sendall(begun)
        client.settimeout(0.01)
        while True:
            with contextlib.suppress(TimeoutError):
                return client.recv(65536)
            client.sendall(b" ")


def complete(server: Server, padding: int) -> requests.Response:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode() + b" " * padding
    headers = {**KEYS, "Content-Type": "application/json"}
    url = f"{server.url}/v1/completions"
    return requests.post(url, data=body, headers=headers, timeout=PATIENCE_S)


def test_bodies_beyond_the_limit_for_all_get_503_and_the_others_are_read(guarded: Server) -> None:
    body = b'{"prompt": "x", "num_tokens": 1}'.ljust(MIB)
    with connected(guarded) as client:
        client.sendall(head("/inference", len(body), KEY) + body[:-9])
        told = drip(guarded, head("/inference", MIB // 2, KEY))
        assert told.startswith(b"HTTP/1.1 503 ")
        refused = complete(guarded, MIB // 2)
        assert int(refused.headers["Retry-After"]) >= 1
        assert "--max-held-bytes" in refused.json()["error"]["message"]
        assert guarded.health() == 200
        models = requests.get(f"{guarded.url}/v1/models", headers=KEYS, timeout=PATIENCE_S)
        assert models.status_code == 200
        client.sendall(body[-9:])
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    eventually(lambda: complete(guarded, MIB // 2).status_code == 200, "the bytes are free again")


def test_bodies_of_any_length_that_never_come_hold_no_probe(guarded: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):  # more than the threads of probes
            client = stack.enter_context(connected(guarded))
            client.sendall(
                b"GET /health HTTP/1.1\r\nHost: [::]\r\nContent-Length: %d\r\n\r\n" % 10**19
            )
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert guarded.health() == 200


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", b"413"), ("/nowhere", b"404")])
def test_a_client_that_writes_a_large_body_before_it_reads_is_not_left_hanging(
    server: Server, path: str, status: bytes
) -> None:
    with connected(server) as client:
        try:
            client.sendall(head(path, 8 * MIB) + bytes(8 * MIB))
            answer = client.recv(65536)
        except ConnectionError:  # on a machine that cannot take so many bytes in a second
            return
        assert answer.startswith(b"HTTP/1.1 %b " % status)
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


def test_refusals_of_many_requests_come_late_but_whole(guarded: Server) -> None:
    url = f"{guarded.url}/nowhere"
    for method in [*["GET"] * (AT_ONCE + 5), "HEAD"]:
        answer = requests.request(method, url, headers=KEYS, timeout=PATIENCE_S)
        assert answer.status_code == 404
        assert bool(answer.content) == (method == "GET")
    assert complete(guarded, 0).status_code == 200


EVIL = "evil.example"


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
        (f"GET /info HTTP/1.1\r\nHost: {EVIL}\r\nX-Forwarded-Host: localhost\r\n", 403),
    ],
)
def test_the_host_of_a_request_is_its_host_field(server: Server, head: str, status: int) -> None:
    with connected(server) as client:
        client.sendall(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        assert int(all_of(client).split(b" ", 2)[1]) == status
