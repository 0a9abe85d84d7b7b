"""Upstreams that send what no server should: the router and its probes survive, and the other
upstreams are served."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from urllib3.exceptions import HTTPError

from tests.router.conftest import Net, raw_post, until

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"Content-Type: application/json\r\nConnection: close\r\n"
DEEP = b'{"data": ' + b"[" * 100_000

LISTS = {
    "nested too deeply": JSON + b"\r\n" + DEEP,
    "an unknown charset": OK + b"Content-Type: application/json; charset=martian\r\n\r\n[]",
    "not UTF-8": JSON + b"\r\n" + b'{"data": [{"id": "\xff"}]}',
    "half a surrogate pair": JSON + b"\r\n" + b'{"data": [{"id": "\\ud800"}]}',
    "not JSON": JSON + b"\r\n" + b'{"data": [NaN]}',
    "empty": JSON + b"Content-Length: 0\r\n\r\n",
    "wrong types": JSON + b"\r\n" + b'{"data": [1, null, {"id": 5}, {"id": null}, [], {}]}',
    "not a list": JSON + b"\r\n" + b'{"data": {"id": "m"}}',
    "broken chunks": JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "compressed": JSON + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08garbage",
    "no HTTP": b"\x00\xff\r\n\r\n",
    "an odd status": b"HTTP/1.1 999 \xff\r\n\r\n",
    "switches protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "endless headers": OK + b"X-A: b\r\n" * 100_000,
}
ENDLESS = b" " * 65536


@contextmanager
def hostile(answer: bytes, then: bytes = b"", posts: bytes = b"") -> Iterator[str]:
    """A server that gives every request this answer, then without an end what follows. POSTs get
    `posts`, if it is set, and no end."""

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            if client.recv(65536).startswith(b"POST") and posts:
                client.sendall(posts)
                client.recv(1)
                return
            client.sendall(answer)
            while then:
                client.sendall(then)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=[client], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_no_list_of_models_ends_the_probes(net: Net) -> None:
    good = net.upstream()
    with ExitStack() as stack:
        odd = {name: stack.enter_context(hostile(answer)) for name, answer in LISTS.items()}
        odd["endless"] = stack.enter_context(hostile(JSON + b"\r\n", ENDLESS))
        router = net.router(*odd.values(), good, probe_interval=0.1, probe_timeout=5)
        states = router.upstreams()
        assert not [name for name, url in odd.items() if states[url]["models"]]
        assert "longer than" in states[odd["endless"]]["last_error"]
        good.behave(models=["m", "new"])  # seen by a later round
        until(lambda: router.upstreams()[good.url]["models"] == ["m", "new"], "another round")
        assert router.post(json={"model": "new"}).ok
        assert router.get("/metrics").ok


def test_models_are_described_as_their_upstream_describes_them(net: Net) -> None:
    nested = b"[" * 300 + b"]" * 300
    described = b'{"id": "m", "n": 1.0, "deep": %b}' % nested
    with hostile(JSON + b'\r\n{"object": "list", "data": [1, %b]}' % described) as upstream:
        router = net.router(upstream)
        assert described in router.get("/v1/models").content
        assert router.get("/v1/models/m").content == described
        assert router.get("/v1/models").json()["data"][0]["id"] == "m"


def test_no_answer_to_a_request_ends_the_router(net: Net, tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = {name: stack.enter_context(hostile(answer)) for name, answer in LISTS.items()}
        listed = tmp_path / "upstreams"
        lines = [f"{url} models=odd-{i}" for i, url in enumerate(urls.values())]
        listed.write_text("\n".join([net.upstream().url, *lines]))
        # no probe between the first and the requests: some of them call an upstream not ready
        router = net.router(upstreams_file=listed, probe_interval=3600, max_attempts=1, wait_for=1)
        ready = router.upstreams()
        for i, (name, url) in enumerate(urls.items()):
            if not ready[url]["ready"]:
                continue
            for stream in (False, True):
                ask = {"model": f"odd-{i}", "stream": stream}
                with router.post(json=ask, stream=True) as answer, suppress(HTTPError):
                    assert answer.status_code in (200, 502), name
                    answer.raw.read()  # may break off
        assert router.post(json={"model": "m"}).ok
        assert json.loads(router.get("/health").content)["status"] == "ok"


@pytest.mark.parametrize("header", [b"text/event-stream; charset=martian", b"\xff;=;", b""])
def test_an_odd_content_type_is_passed_on(header: bytes, net: Net, tmp_path: Path) -> None:
    answer = OK + b"Content-Type: " + header + b"\r\nContent-Length: 2\r\n\r\n{}"
    with hostile(answer) as upstream:
        listed = tmp_path / "upstreams"
        listed.write_text(f"{upstream} models=m")
        assert net.router(upstreams_file=listed).post().content == b"{}"


def test_a_refusal_whose_body_is_late_holds_no_place(net: Net) -> None:
    listed = JSON + b'\r\n{"data": [{"id": "m"}]}'
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{"
    with hostile(listed, posts=refused) as upstream:
        router = net.router(upstream)
        with socket.create_connection(("127.0.0.1", router.port)) as client:
            client.sendall(raw_post(b'{"model": "m"}'))
            begun = "eb_router_first_byte_seconds_count"
            until(lambda: router.metric(begun), "the head of the refusal")
            assert router.in_flight() == 0
