"""In front of this project's server: paths that the router does not serve stay hidden, however a
client asks for them, and its own API can name the model like the others."""

import json
import socket
from collections.abc import Iterator

import pytest

from api.document.paths import OPERATIONS
from tests.router.conftest import TIMEOUT_S, RouterProcess
from tests.support.process import Server, closed_at_end, serving
from tests.support.wire import all_of

ASKED = b'{"prompt": "a", "max_tokens": 1}'
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
    keys = {"api_keys": "up,client", "upstream_api_key": "up"}
    router = RouterProcess(server.url, batch_upstream=server.url, **keys).probed()
    yield router
    router.close()


def resets(port: int, key: str, path: str, header: bytes) -> bool:
    """Whether this request resets the server's statistics."""
    with closed_at_end(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        length = b"Content-Length: %d\r\nConnection: close\r\n" % len(ASKED)
        client.sendall(head.encode() + header + length + b"\r\n" + ASKED)
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


KEY, JSON = b"Authorization: Bearer up", b"Content-Type: application/json"
FORM = b"Content-Type: multipart/form-data; boundary="
CHUNKS = b"Transfer-Encoding: chunked"
BAD_CHUNKS = b"ZZ\r\n\r\n"
BODY = {"inputs": "a", "prompt": "a", "input": "a", "messages": [{"role": "user", "content": "a"}]}
BODIES = {
    "/inference": {"prompt": "a", "num_tokens": 1},
    "/v1/batches": {"input_file_id": "a", "endpoint": "/v1/responses", "completion_window": "24h"},
    "/v1/responses": {"input": "a", "max_output_tokens": 16},
}
NO_TEXT = b": a\xff\xed\xa0\x80"
READ = (
    b"Accept", b"Cookie", b"Idempotency-Key", b"User-Agent", b"X-Program-Id", b"X-Request-Id",
    b"X-Session-Id", b"X-Upstream-Mark", b"X-User-Id", b"baggage", b"traceparent", b"tracestate",
)  # fmt: skip
ODD = {
    "a key": [b"Authorization: Bearer \xff"],
    "a type": [KEY, b"Content-Type: \xff"],
    "a charset": [KEY, JSON + b"; charset=\xff"],
    "a boundary": [KEY, FORM + b"\xff"],
    "an encoding": [KEY, JSON, b"Content-Encoding: \xff"],
    "an expectation": [KEY, JSON, b"Expect: \xff"],
    "a host": [KEY, b"Host: \xff"],
    "a length": [KEY, b"Content-Length: \xff"],
    "a coding": [KEY, b"Transfer-Encoding: \xff"],
    "a model": [KEY, JSON, b"X-Model: \xff"],
    "a name": [KEY, b"X-\xff: a"],
    "a page": [KEY, JSON, b"Origin" + NO_TEXT, b"Sec-Fetch-Site" + NO_TEXT],
    "a priority": [KEY, JSON, b"X-Priority" + NO_TEXT],
    "what is read later": [KEY, JSON, *(name + NO_TEXT for name in READ)],
    "chunks": [KEY, JSON, CHUNKS],
    "a form's chunks": [KEY, FORM + b"x", CHUNKS],
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("routed", [False, True])
def test_malformed_bytes_are_the_fault_of_their_client_and_get_one_answer(
    server: Server, router: RouterProcess, routed: bool, odd: str
) -> None:
    port = router.port if routed else server.config.port
    endless = ("GET", "/watch/events")
    for number, (method, path) in enumerate(sorted(OPERATIONS.keys() - {endless}), 2):
        own = (f"127.0.0.{number}", 0)  # refusals of one address are paced
        address = path.replace("{", "%ff").replace("}", "")
        body = json.dumps(BODIES.get(path, BODY)).encode() if method == "POST" else b""
        body = BAD_CHUNKS if CHUNKS in ODD[odd] else body
        lines = [f"{method} {address}?after=%ff&order=%ff HTTP/1.1".encode(), *ODD[odd]]
        names = {line.partition(b":")[0] for line in lines}
        lines += [b"Connection: close"]
        lines += [b"Host: localhost"] if b"Host" not in names else []
        if names.isdisjoint({b"Content-Length", b"Transfer-Encoding"}):
            lines += [b"Content-Length: %d" % len(body)]
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S, own) as client:
            client.sendall(b"\r\n".join([*lines, b"", body]))
            told = all_of(client)
        status, seen = int(told.split()[1]), (method, path, told)
        assert status < 500, seen
        assert told.count(b"HTTP/1.") == 1, seen
        if status >= 400:
            error = json.loads(told.partition(b"\r\n\r\n")[2])["error"]
            assert isinstance(error, dict if path.startswith("/v1/") else dict | str), seen
    assert "Traceback" not in server.log
