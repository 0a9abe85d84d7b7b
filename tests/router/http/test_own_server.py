"""In front of this project's servers: paths that the router does not serve stay hidden, however a
client asks for them; files, batches, responses and tokens are those of the servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import openai
import pytest
import requests

from router.rules.upstream import mark_of
from tests.router.conftest import Net, Pair, RouterProcess
from tests.support import official as support
from tests.support.dialects import OPERATIONS
from tests.support.official import ended, line, outcome, require_answers, submitted
from tests.support.process import PATIENCE_S, Server, closed_at_end, eventually, serving
from tests.support.wire import all_of

DOWN = "http://127.0.0.1:1"
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
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
        yield [stack.enter_context(serving(folder, api_key="up,two")) for folder in folders]


@pytest.fixture(scope="module")
def server(servers: list[Server]) -> Server:
    return servers[0]


@pytest.fixture(scope="module")
def router(servers: list[Server]) -> Iterator[RouterProcess]:
    """Files and batches go to the first server; a conversation stays with its own."""
    first, second = servers
    options = {"api_keys": "up,client", "upstream_api_key": "up", "policy": "round-robin"}
    with closing(
        RouterProcess(second, first, batch_upstream=first.url, max_body_bytes=2**16, **options)
    ) as router:
        yield router.probed()


official = partial(support.official, api_key="up")


def resets(port: int, key: str, path: str, header: bytes) -> bool:
    """Whether this request resets the server's statistics."""
    with closed_at_end(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        length = b"Content-Length: %d\r\nConnection: close\r\n" % len(ASKED)
        client.sendall(head.encode() + header + length + b"\r\n" + ASKED)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    return b'{"reset":' in answer.replace(b" ", b"")


def test_a_server_tells_its_load_and_what_an_answer_cost_sets_its_rate(
    router: RouterProcess, servers: list[Server]
) -> None:
    key = {"Authorization": "Bearer client"}
    for stream in (False, True):
        for _ in servers:
            asked = {"prompt": "a", "max_tokens": 4, "stream": stream}
            answer = router.post(json=asked, headers=key)
            assert answer.ok
            assert "X-Engine-Load" not in answer.headers, "for the router alone"
    for shown in router.get("/upstreams", headers=key).json()["upstreams"]:
        assert {*shown["told"]} == {"waiting", "running", "free_blocks"}
        assert shown["outstanding_tokens"] == 0
        assert shown["tokens_per_s"] > 0
    for url in (server.url for server in servers):
        assert router.metric("eb_router_tokens_per_second", upstream=url) > 0
        assert router.metric("eb_router_told_free_blocks", upstream=url) > 0


@pytest.mark.parametrize("trick", TRICKS)
def test_statistics_are_not_reset_through_the_router(
    router: RouterProcess, server: Server, trick: str
) -> None:
    assert not resets(router.port, "client", *TRICKS[trick])
    if b"_" in TRICKS[trick][1]:  # no server takes a path from a header either
        assert not resets(server.config.port, "up", *TRICKS[trick])
    assert resets(server.config.port, "up", "/stats/reset", b"")


def test_a_job_goes_to_the_upstream_that_is_named(
    router: RouterProcess, servers: list[Server]
) -> None:
    client = official(router)
    batch = ended(client, submitted(client, [line(n, max_tokens=4) for n in range(20)]).id)
    output, errors = outcome(client, batch, 20)
    assert not errors
    require_answers(output, 4)
    assert official(servers[0]).batches.retrieve(batch.id).status == "completed"
    with pytest.raises(openai.NotFoundError):
        official(servers[1]).batches.retrieve(batch.id)


def test_a_file_may_be_larger_than_any_other_body(router: RouterProcess) -> None:
    files, big = official(router).files, b"x" * (3 * 2**20)
    assert files.content(files.create(file=("big", big), purpose="batch").id).read() == big
    with pytest.raises(openai.AuthenticationError):
        official(router, api_key="wrong").files.list()


def end_of(answer: requests.Response) -> tuple[int, str]:
    """Its status, and the upstream or the code of the error."""
    return answer.status_code, answer.headers.get("X-Upstream-Origin") or (
        answer.json()["error"]["code"]
    )


def test_an_upstream_for_jobs_must_be_named_and_up_unless_any_will_do(
    shared: Pair, net: Net
) -> None:
    for method, path in (("GET", "files"), ("POST", "files"), ("POST", "batches/b/cancel")):
        url = f"{shared.router.url}/v1/{path}"
        answer = requests.request(method, url, timeout=PATIENCE_S)
        assert end_of(answer) == (501, "no_batch_upstream")
    answer = net.router(shared.upstream, batch_upstream=DOWN).get("/v1/batches")
    assert end_of(answer) == (503, "no_upstream_ready")
    answer = net.router(DOWN, shared.upstream, batch_upstream="any").get("/v1/batches")
    assert end_of(answer) == (200, shared.upstream.url)


def test_a_new_batch_goes_to_an_upstream_of_its_model(net: Net) -> None:
    def taken(router: RouterProcess, **headers: str) -> tuple[int, str]:
        return end_of(router.post("/v1/batches", json={"input_file_id": "f"}, headers=headers))

    first, second = net.upstream("a"), net.upstream("b")
    router = net.router(first, second, batch_upstream="any", probe_interval=0.1)
    for model, upstream in (("a", first), ("b", second)):
        assert taken(router, **{"X-Model": model}) == (200, upstream.url)
    for servers, options in (
        ((first, second), {"batch_upstream": "any", "default_model": "b"}),
        ((first, second), {"batch_upstream": second.url}),
        ((second, net.upstream("b")), {"batch_upstream": "any"}),
    ):
        assert taken(net.router(*servers, **options)) == (200, second.url)
    # only a new batch must name its model, and only where there are several
    assert router.post("/v1/batches/b/cancel").status_code == 200
    asked = len(first.bodies)
    assert taken(router) == (400, "model_required")
    assert taken(router, **{"X-Model": "c"}) == (422, "model_not_found")
    second.behave(probe_status=500)
    eventually(lambda: taken(router, **{"X-Model": "b"})[0] == 503, "503 for b")
    assert len(first.bodies) == asked


FIELDS: Any = {"model": "embedded", "input": "x", "max_output_tokens": 3}


def made_at(router: RouterProcess, server: Server) -> str:
    """The id of a response that the router had made there, though its client sent a mark."""
    own = {"X-Upstream-Mark": "00000000"}
    create = official(router).responses.with_raw_response.create
    while True:
        made = create(**FIELDS, extra_headers=own)
        if made.headers["X-Upstream-Origin"] == server.url:
            assert made.parse().id.startswith(f"resp_{mark_of(server.url)}_")
            return made.parse().id


def test_a_conversation_stays_where_it_is_stored_and_where_that_is_down_no_other_is_asked(
    router: RouterProcess, servers: list[Server], net: Net
) -> None:
    first, second = (made_at(router, server) for server in servers)
    restarted = net.router(*servers, upstream_api_key="up")
    for found in (router, restarted):
        responses = official(found).responses
        for server, id in zip(servers, (first, second), strict=True):
            for _ in range(2):
                again = responses.with_raw_response.create(previous_response_id=id, **FIELDS)
                assert again.headers["X-Upstream-Origin"] == server.url
            counted = responses.input_tokens.count(
                model="embedded", input="x", previous_response_id=id
            )
            assert counted.input_tokens > 0
            assert responses.retrieve(id).id == id
    client = official(net.router(servers[0], DOWN, upstream_api_key="up")).responses
    # one that was made without the router is looked for
    own = official(servers[0]).responses.create(**FIELDS).id
    assert client.retrieve(own).id == own
    with pytest.raises(openai.NotFoundError):  # the one that answers never had it
        client.create(previous_response_id=second, **FIELDS)
    lost = second.replace(second.split("_")[1], mark_of(DOWN))
    for call in (client.retrieve, lambda id: client.create(previous_response_id=id, **FIELDS)):
        with pytest.raises(openai.InternalServerError) as refused:
            call(lost)
        assert refused.value.status_code == 503


def test_tokens_need_no_place_and_where_an_upstream_fails_another_is_asked(net: Net) -> None:
    broken, upstream = net.upstream(drop="before"), net.upstream(hold_after=1)
    router = net.router(upstream, max_connect_per_upstream=1)
    with router.streaming():  # which takes the place
        assert router.post("/tokenize").status_code == 200
    assert end_of(net.router(broken, upstream).post("/tokenize")) == (200, upstream.url)
    assert end_of(net.router(broken).post("/tokenize")) == (502, "upstream_failed")


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
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S, own) as client:
            client.sendall(b"\r\n".join([*lines, b"", body]))
            told = all_of(client)
        status, seen = int(told.split()[1]), (method, path, told)
        assert status < 500, seen
        assert told.count(b"HTTP/1.") == 1, seen
        if status >= 400:
            error = json.loads(told.partition(b"\r\n\r\n")[2])["error"]
            assert isinstance(error, dict if path.startswith("/v1/") else dict | str), seen
    assert "Traceback" not in server.log
