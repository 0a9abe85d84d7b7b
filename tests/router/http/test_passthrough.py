"""What goes in comes out: bodies, headers, statuses, streams; and what the router says itself."""

import gzip
import http.client
import json

import openai
import pytest
import requests

from tests.router.conftest import Net, Pair
from tests.support.official import official
from tests.support.process import PATIENCE_S

EVENTS = b'data: {"text": "a"}\n\ndata: [DONE]\n\n'
HALF_BODY = rb'{"model": "m", "prompt": "\ud800", "\uDEAD": "\\\ud83d"}'
ODD_BODY = '{"model" : "m",\n "prompt":"\\u00e9 é 🚀", "n": 1.0, "n": 2 , "x":[ ]}'.encode()


PATHS = [
    "/v1/chat/completions", "/v1/engines/m/completions", "/v1/rerank?debug=a%2Fb&c", "/inference",
    "/", "/generate", "/generate_stream", "/tokenize", "/detokenize", "/chat_tokenize",
]  # fmt: skip


def test_bodies_and_paths_pass_byte_for_byte(shared: Pair) -> None:
    large = json.dumps({"model": "m", "prompt": [*range(300_000)]}).encode()
    for path, body in [
        (PATHS[0], large),
        (PATHS[0], HALF_BODY),
        *((path, ODD_BODY) for path in PATHS),
    ]:
        answer = shared.router.post(path, data=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200
        assert (shared.upstream.bodies[-1], shared.upstream.paths[-1]) == (body, path)
        assert shared.upstream.headers[-1]["content-length"] == str(len(body))


def test_answers_pass_byte_for_byte_large_ones_and_compressed_ones_that_none_asked_for(
    shared: Pair,
) -> None:
    packed = [gzip.compress(whole, mtime=0) for whole in (b'{"answer" :  42}', EVENTS)]
    for raw, kind, code in (
        (packed[0], "application/json", "gzip"),
        (packed[1], "text/event-stream", "gzip"),
        (bytes(range(256)) * 8192, "application/json", "identity"),  # more than what is held back
    ):
        headers = {"Content-Encoding": code, "Content-Type": kind}
        how = {"raw": raw.decode("latin-1"), "headers": headers}
        answer = shared.router.post(json={"model": "m", "behave": how}, stream=True)
        assert answer.headers["Content-Encoding"] == code
        assert answer.raw.read(decode_content=False) == raw
        assert shared.upstream.headers[-1]["accept-encoding"] == "identity"


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_a_stream_passes_byte_for_byte_while_the_upstream_still_works(net: Net, end: str) -> None:
    upstream = net.upstream(hold_after=2, separator=end)
    ask = {"model": "m", "stream": True}
    with net.router(upstream).post(json=ask, stream=True) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        came = answer.raw.read(8)
        while not came.endswith(end.encode()) or came.count(b"data: ") < 2:
            came += answer.raw.read(1)
        upstream.release()
        came += answer.raw.read()
    address = f"{upstream.url}/v1/completions"
    assert came == requests.post(address, json=ask, timeout=PATIENCE_S).content


OPENAIS = {"message", "type", "param", "code"}
TGIS = {"error", "error_type"}
OURS = {"error"}


@pytest.mark.parametrize(
    ("path", "body", "status", "keys"),
    [
        *(
            ("/v1/completions", body, 400, OPENAIS)
            for body in (
                b"{", b"[1]", b"[" * 100_000, b'{"prompt": ' + b"[" * 100_000, b"\xff\xfe", b"",
                b'{"model": 5}',
            )
        ),
        ("/v1/completions", b'{"model": "n"}', 422, OPENAIS),
        ("/generate", b"{", 400, TGIS),
        ("/inference", b"{", 400, OURS),
        ("/tokenize", b'{"model": "n", "inputs": "x"}', 422, TGIS),
        ("/tokenize", b'{"model": "n", "prompt": "x"}', 422, OPENAIS),
        ("/detokenize", b'{"model": "n", "tokens": [1]}', 422, OPENAIS),
        ("/chat_tokenize", b'{"model": "n", "messages": []}', 422, TGIS),
        *(
            (path, b'{"model": "m"}', 400, OPENAIS)
            for path in ("/v1/%2e%2e/x", "/v1/../x", "/v1/.%2E%2fx", "/v1/a%5c..%5Cx", "/v1/.")
        ),
        ("/nope", b"{}", 404, OPENAIS),
    ],
)  # fmt: skip
def test_what_is_refused_reaches_no_upstream_and_gets_an_error_in_the_shape_of_its_api(
    shared: Pair, path: str, body: bytes, status: int, keys: set[str]
) -> None:
    before = len(shared.upstream.bodies)
    connection = http.client.HTTPConnection("127.0.0.1", shared.router.port, timeout=PATIENCE_S)
    connection.request("POST", path, body)  # other clients would resolve the path
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    assert answer.status == status
    assert set(told["error"] if keys is OPENAIS else told) == keys
    assert status != 422 or "all available models: m." in str(told)
    assert (answer.headers["X-Request-Id"] or "").startswith("req-")
    assert len(shared.upstream.bodies) == before


def test_models_are_the_union_and_can_be_asked_for_one_by_one(net: Net, shared: Pair) -> None:
    first, second = net.upstream("a", "org/b"), net.upstream("a", "c")
    router = net.router(first, second)
    listed = router.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [m["id"] for m in listed["data"]] == ["a", "org/b", "c"]
    assert router.get("/v1/models/org/b").json()["id"] == "org/b"
    # Paths whose clients name no model need one that is unmistakable.
    unnamed = router.post("/generate", json={"inputs": "x"})
    assert unnamed.status_code == 422
    assert "a, org/b, c." in unnamed.json()["error"]
    for model, upstream in (("org/b", first), ("c", second)):
        asked = router.post("/generate", json={"inputs": "x"}, headers={"X-Model": model})
        assert asked.headers["X-Upstream-Origin"] == upstream.url
    assert net.router(first, default_model="org/b").post("/generate", json={}).ok
    assert all(shared.router.post(json={"model": name}).ok for name in ("tgi", "dummy"))


def test_refusals_and_broken_streams_are_the_official_clients_own_exceptions(shared: Pair) -> None:
    client = official(shared.router)
    with pytest.raises(openai.UnprocessableEntityError, match="all available models: m"):
        client.completions.create(model="none", prompt="hi")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")
    assert client.models.retrieve("m").id == "m"
    how: dict[str, object] = {"behave": {"cut_after": 2}}
    stream = client.completions.create(model="m", prompt="hi", stream=True, extra_body=how)
    got: list[str] = []
    with pytest.raises(openai.APIError, match="failed"):
        got.extend(event.choices[0].text for event in stream)
    assert got == [" w0", " w1"], "no short answer"


def test_a_server_that_dies_after_the_last_event_spoils_no_stream(net: Net) -> None:
    """Nothing is said after [DONE], where clients expect the end."""
    events = 'data: {"choices": []}\n\ndata: [DONE]\n\n'
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    dying = net.upstream(said=f"{head}{len(events):x}\r\n{events}\r\n", said_to="POST")
    router = net.router(dying)
    assert router.post(json={"model": "m", "stream": True}).text == events
    assert router.in_flight() == 0
