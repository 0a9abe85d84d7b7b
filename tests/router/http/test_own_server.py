"""In front of this project's servers: paths that the router does not serve stay hidden, however a
client asks for them; files, batches, responses and tokens are those of the servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import requests
from openai import OpenAI

from api.document.paths import OPERATIONS
from router.rules.responses import mark_of
from tests.router.conftest import Net, Pair, RouterProcess, until
from tests.router.farm import TIMEOUT_S
from tests.support.official import ended, line, outcome, require_answers, submitted
from tests.support.process import PATIENCE_S, Server, closed_at_end, serving
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("first"), api_key="up,two") as server:
        yield server


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("second"), api_key="up,two") as server:
        yield server


@pytest.fixture(scope="module")
def router(server: Server, other: Server) -> Iterator[RouterProcess]:
    """Files and batches go to the first server; a conversation stays with its own."""
    options = {"api_keys": "up,client", "upstream_api_key": "up", "policy": "round-robin"}
    bounds = {"max_body_bytes": 2**16}
    urls = other.url, server.url
    router = RouterProcess(*urls, batch_upstream=server.url, **options, **bounds).probed()
    yield router
    router.close()


def official(router: RouterProcess | Server, key: str = "up") -> OpenAI:
    url = f"{router.url}/v1"
    return closed_at_end(OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_S))


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


def test_a_job_goes_to_the_upstream_that_is_named(
    router: RouterProcess, server: Server, other: Server
) -> None:
    client = official(router)
    batch = ended(client, submitted(client, [line(n, max_tokens=4) for n in range(20)]).id)
    output, errors = outcome(client, batch, 20)
    assert not errors
    require_answers(output, 4)
    assert official(server).batches.retrieve(batch.id).status == "completed"
    with pytest.raises(openai.NotFoundError):
        official(other).batches.retrieve(batch.id)


def test_a_file_may_be_larger_than_any_other_body(router: RouterProcess) -> None:
    client, big = official(router), b"x" * (3 * 2**20)
    file = client.files.create(file=("big", big), purpose="batch")
    assert client.files.content(file.id).read() == big
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.content(file.id)
    assert gone.value.response.headers["X-Upstream-Origin"]
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("f", b"{}"), purpose="vision")
    with pytest.raises(openai.AuthenticationError):
        official(router, "wrong").files.list()


def test_without_an_upstream_for_jobs_the_setting_is_named(shared: Pair) -> None:
    for method, path in (("GET", "files"), ("POST", "files"), ("POST", "batches/b/cancel")):
        url = f"{shared.router.url}/v1/{path}"
        answer = requests.request(method, url, timeout=PATIENCE_S)
        assert answer.status_code == 501
        assert answer.json()["error"]["code"] == "no_batch_upstream"
        assert "BATCH_UPSTREAM" in answer.json()["error"]["message"]


def test_an_upstream_for_jobs_that_is_down_is_503_and_any_is_taken_where_all_share(
    net: Net,
) -> None:
    upstream = net.upstream()
    answer = net.router(upstream, batch_upstream=DOWN).get("/v1/batches")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "127.0.0.1" not in answer.text
    answer = net.router(DOWN, upstream, batch_upstream="any").get("/v1/batches")
    assert (answer.status_code, answer.headers["X-Upstream-Origin"]) == (200, upstream.url)


def new_batch(router: RouterProcess, **headers: str) -> requests.Response:
    return router.post("/v1/batches", json={"input_file_id": "f"}, headers=headers)


def test_a_new_batch_goes_to_an_upstream_of_its_model(net: Net) -> None:
    first, second = net.upstream("a"), net.upstream("b")
    router = net.router(first, second, batch_upstream="any", probe_interval=0.1)
    for model, upstream in (("a", first), ("b", second)):
        taken = new_batch(router, **{"X-Model": model})
        assert (taken.status_code, taken.headers["X-Upstream-Origin"]) == (200, upstream.url)
    by_default = net.router(first, second, batch_upstream="any", default_model="b")
    assert new_batch(by_default).headers["X-Upstream-Origin"] == second.url

    unnamed = new_batch(router)
    assert unnamed.status_code == 400
    assert unnamed.json()["error"]["code"] == "model_required"
    assert "X-Model" in unnamed.json()["error"]["message"]
    assert "a, b." in unnamed.json()["error"]["message"]
    unknown = new_batch(router, **{"X-Model": "c"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (422, "model_not_found")
    second.behave(models_status=500)
    until(lambda: new_batch(router, **{"X-Model": "b"}).status_code == 503, "503 for b")
    assert len(first.bodies) == 1


def test_only_a_new_batch_must_name_its_model_and_only_where_there_are_several(net: Net) -> None:
    first, second, other = (net.upstream(name) for name in ("a", "a", "b"))
    router = net.router(first, other, batch_upstream="any")
    assert router.post("/v1/files").status_code == 200
    assert router.post("/v1/batches/b/cancel").status_code == 200
    assert new_batch(net.router(first, second, batch_upstream="any")).status_code == 200
    assert new_batch(net.router(first, other, batch_upstream=other.url)).status_code == 200


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


def test_a_conversation_stays_where_it_is_stored(
    router: RouterProcess, server: Server, other: Server, net: Net
) -> None:
    servers = [server, other]
    ids = [made_at(router, server) for server in servers]
    restarted = net.router(*servers, upstream_api_key="up")
    for found in (router, restarted):
        responses = official(found).responses
        for server, id in zip(servers, ids, strict=True):
            for _ in range(2):
                again = responses.with_raw_response.create(previous_response_id=id, **FIELDS)
                assert again.headers["X-Upstream-Origin"] == server.url
            counted = responses.input_tokens.count(
                model="embedded", input="x", previous_response_id=id
            )
            assert counted.input_tokens > 0
            assert responses.retrieve(id).id == id
            assert [item.type for item in responses.input_items.list(id)] == ["message"]
            with pytest.raises(openai.BadRequestError, match="background"):
                responses.cancel(id)
    official(restarted).responses.delete(ids[0])
    with pytest.raises(openai.NotFoundError):
        official(router).responses.retrieve(ids[0])


def test_a_stream_in_the_background_is_resumed_where_it_is_generated(
    router: RouterProcess,
) -> None:
    client = official(router)
    for _ in range(2):
        with client.responses.create(background=True, stream=True, **FIELDS) as stream:
            begun: Any = next(iter(stream))
        rest = list(client.responses.retrieve(begun.response.id, stream=True, starting_after=0))
        assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
        assert rest[-1].type in ("response.completed", "response.incomplete")


def test_where_the_server_of_a_conversation_is_down_no_other_is_asked(
    router: RouterProcess, server: Server, other: Server, net: Net
) -> None:
    id = made_at(router, other)
    client = official(net.router(server, DOWN, upstream_api_key="up"))
    with pytest.raises(openai.NotFoundError):  # the one that answers never had it
        client.responses.create(previous_response_id=id, **FIELDS)
    lost = id.replace(id.split("_")[1], mark_of(DOWN))
    for call in (
        lambda: client.responses.create(previous_response_id=lost, **FIELDS),
        lambda: client.responses.retrieve(lost),
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            call()
        assert refused.value.status_code == 503


def test_a_response_that_was_made_without_the_router_is_looked_for(
    server: Server, net: Net
) -> None:
    id = official(server).responses.create(**FIELDS).id
    assert official(net.router(server, upstream_api_key="up")).responses.retrieve(id).id == id


def test_tokens_need_no_place_and_where_an_upstream_fails_another_is_asked(net: Net) -> None:
    broken, upstream = net.upstream(), net.upstream(hold=True)
    router = net.router(upstream, max_connect_per_upstream=1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(router.post)
        until(lambda: router.in_flight() == 1, "the request that takes the place")
        upstream.behave(hold=False)
        assert router.post("/tokenize").status_code == 200
        net.release(upstream)
        assert answer.result().status_code == 200
    broken.behave(drop="before")
    answered = net.router(broken, upstream).post("/tokenize")
    assert (answered.status_code, answered.headers["X-Upstream-Origin"]) == (200, upstream.url)
    alone = net.router(broken).post("/tokenize")
    assert alone.status_code == 502
    assert "error" in alone.json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"inputs": "def main("}),
        ("/tokenize", {"prompt": "def main("}),
        ("/chat_tokenize", {"messages": [{"role": "user", "content": "x"}]}),
        ("/detokenize", {"tokens": [10**6]}),
    ],
)
def test_our_own_servers_tokens_are_the_servers(
    router: RouterProcess, server: Server, path: str, body: dict[str, Any]
) -> None:
    key = {"Authorization": "Bearer up"}
    direct = requests.post(server.url + path, json=body, headers=key, timeout=PATIENCE_S)
    answer = router.post(path, json=body, headers=key)
    assert (answer.status_code, answer.json()) == (direct.status_code, direct.json())


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
