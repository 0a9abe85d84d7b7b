"""In front of this project's server: paths that the router does not serve stay hidden, however a
client asks for them, and its own API can name the model like the others."""

import socket
from collections.abc import Iterator

import pytest

from tests.router.conftest import TIMEOUT_S, RouterProcess
from tests.server.process import Server, closed_at_end, serving

BODY = b'{"prompt": "a", "max_tokens": 1}'
TRICKS = {
    "SCRIPT_NAME": ("/v1/stats/reset", b"SCRIPT_NAME: /v1\r\n"),
    "script_name": ("/v1/stats/reset", b"script_name: /v1\r\n"),
    "PATH_INFO": ("/v1/completions", b"PATH_INFO: /stats/reset\r\n"),
    "X-Forwarded-Prefix": ("/v1/stats/reset", b"X-Forwarded-Prefix: /v1\r\n"),
    "dots": ("/v1/../stats/reset", b""),
    "encoded dots": ("/v1/%2e%2e/stats/reset", b""),
    "slashes": ("/v1//../stats/reset", b""),
    "a whole URL": ("http://x/stats/reset", b""),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("hidden"), api_key="up") as server:
        yield server


@pytest.fixture(scope="module")
def router(server: Server) -> Iterator[RouterProcess]:
    router = RouterProcess(server.url, api_keys="client", upstream_api_key="up").probed()
    yield router
    router.close()


def resets(port: int, key: str, path: str, header: bytes) -> bool:
    """Whether this request resets the server's statistics."""
    with closed_at_end(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        length = b"Content-Length: %d\r\nConnection: close\r\n" % len(BODY)
        client.sendall(head.encode() + header + length + b"\r\n" + BODY)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    return b'{"reset":' in answer.replace(b" ", b"")


@pytest.mark.parametrize("trick", TRICKS)
def test_statistics_are_not_reset_through_the_router(router: RouterProcess, trick: str) -> None:
    assert not resets(router.port, "client", *TRICKS[trick])


@pytest.mark.parametrize("trick", ["SCRIPT_NAME", "PATH_INFO"])
def test_a_server_takes_no_path_from_a_header(server: Server, trick: str) -> None:
    assert not resets(server.config.port, "up", *TRICKS[trick])
    assert resets(server.config.port, "up", "/stats/reset", b"")


def test_our_own_api_names_the_model_in_the_body_or_in_a_header(router: RouterProcess) -> None:
    known = {"Authorization": "Bearer client"}
    (model,) = (m["id"] for m in router.get("/v1/models", headers=known).json()["data"])
    body = {"prompt": "a", "num_tokens": 2, "seed": 1}
    answers = [
        router.post("/inference", json=body | named, headers=known | header)
        for named, header in (({}, {"X-Model": model}), ({"model": model}, {}))
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({answer.json()["completion"] for answer in answers}) == 1
