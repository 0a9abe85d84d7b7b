"""What goes in comes out: bodies, headers, statuses, streams; and what the router says itself."""

import base64
import gzip
import http.client
import json
import socket
from typing import Any

import pytest
import requests
import urllib3

from tests.router.conftest import TIMEOUT_S, Farm, RouterProcess, until

EVENTS = b'data: {"text": "a"}\n\ndata: [DONE]\n\n'
Shared = tuple[RouterProcess, str]
ODD_BODY = '{"model" : "m",\n "prompt":"\\u00e9 é 🚀", "n": 1.0, "n": 2 , "x":[ ]}'.encode()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/engines/m/completions",
        "/v1/embeddings",
        "/v1/rerank?debug=a%2Fb&c",
        "/inference",
        "/",
        "/generate",
        "/generate_stream",
        "/tokenize",
        "/detokenize",
        "/chat_tokenize",
    ],
)
def test_bodies_and_paths_pass_byte_for_byte(shared: Shared, farm: Farm, path: str) -> None:
    router, upstream = shared
    answer = router.post(path, data=ODD_BODY, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    seen = farm.state(upstream)["seen"][-1]
    assert base64.b64decode(seen["body"]) == ODD_BODY
    assert seen["path"] == path


def test_a_large_body_passes_byte_for_byte_and_with_its_length(shared: Shared, farm: Farm) -> None:
    router, upstream = shared
    body = json.dumps({"model": "m", "prompt": [*range(300_000)]}).encode()
    assert router.post(data=body).ok
    seen = farm.state(upstream)["seen"][-1]
    assert base64.b64decode(seen["body"]) == body
    assert seen["headers"]["content-length"] == str(len(body))


def test_compressed_answers_pass_byte_for_byte_though_none_are_asked_for(
    shared: Shared, farm: Farm
) -> None:
    router, upstream = shared
    for whole, kind in ((b'{"answer" :  42}', "application/json"), (EVENTS, "text/event-stream")):
        packed = gzip.compress(whole, mtime=0)
        headers = {"Content-Encoding": "gzip", "Content-Type": kind}
        how = {"raw": base64.b64encode(packed).decode(), "headers": headers}
        answer = router.post(json={"model": "m", "behave": how}, stream=True)
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.raw.read(decode_content=False) == packed
        assert farm.state(upstream)["seen"][-1]["headers"]["accept-encoding"] == "identity"


def test_a_compressed_stream_that_breaks_is_cut_and_no_text_is_put_into_it(
    shared: Shared,
) -> None:
    """Its blank lines are no ends of events, and an event in plain text would be garbage in it."""
    how = {"headers": {"Content-Encoding": "gzip"}, "cut_after": 3}
    ask = {"model": "m", "stream": True, "behave": how}
    answer = shared[0].post(json=ask, stream=True)
    got: list[bytes] = []
    with pytest.raises(urllib3.exceptions.ProtocolError):
        got.extend(answer.raw.stream(decode_content=False))
    assert b"unfinished" in b"".join(got)
    assert b"error" not in b"".join(got)


def test_an_answer_larger_than_what_is_held_back_passes_whole(shared: Shared) -> None:
    router, _ = shared
    large = bytes(range(256)) * 8192
    how = {"raw": base64.b64encode(large).decode()}
    assert router.post(json={"model": "m", "behave": how}).content == large


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_a_stream_passes_byte_for_byte_and_event_by_event(
    shared: Shared, farm: Farm, end: str
) -> None:
    router, _ = shared
    ask = {"model": "m", "stream": True, "behave": {"separator": end}}
    direct = requests.post(f"{shared[1]}/v1/completions", json=ask, timeout=TIMEOUT_S)
    routed = router.post(json=ask)
    assert routed.content == direct.content
    assert routed.headers["Content-Type"] == "text/event-stream"


def test_events_come_while_the_upstream_still_works(shared: Shared, farm: Farm) -> None:
    router, _ = shared
    ask = {"model": "m", "stream": True, "behave": {"hold_after": 2}}
    with router.post(json=ask, stream=True) as answer:
        lines = answer.iter_lines()
        first = [next(lines) for _ in range(3)]
        assert b"w0" in first[0]
        assert b"w1" in first[2]
        farm("release", url=shared[1])
        assert [line for line in lines if line][-1] == b"data: [DONE]"


def test_the_request_id_is_the_clients_where_it_is_sane_and_new_otherwise(
    shared: Shared, farm: Farm
) -> None:
    router, upstream = shared
    assert router.post(headers={"X-Request-Id": "abc-1"}).headers["X-Request-Id"] == "abc-1"
    assert farm.state(upstream)["seen"][-1]["headers"]["x-request-id"] == "abc-1"
    ids = {router.post(headers={"X-Request-Id": "x" * 500}).headers["X-Request-Id"]}
    ids |= {router.post().headers["X-Request-Id"] for _ in range(2)}
    assert len(ids) == 3
    assert all(i.startswith("req-") for i in ids)
    assert router.post(data=b"{").headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b"[" * 100_000, 400, "must be a JSON object"),
        (b'{"prompt": ' + b"[" * 100_000, 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"", 400, "not valid JSON"),
        (b'{"model": 5}', 400, "'model' must be a string"),
        (b'{"model": "n"}', 422, "No upstream found with n, all available models: m."),
    ],
)
def test_a_bad_body_is_refused_with_an_openai_error_object(
    shared: Shared, body: bytes, status: int, says: str
) -> None:
    answer = shared[0].post(data=body)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert says in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/generate", "/inference"])
def test_tgi_and_our_own_clients_get_errors_as_strings(shared: Shared, path: str) -> None:
    assert isinstance(shared[0].post(path, data=b"{").json()["error"], str)


@pytest.mark.parametrize(
    "path", ["/v1/%2e%2e/x", "/v1/../x", "/v1/.%2E%2fx", "/v1/a%5c..%5Cx", "/v1/.", "/%2e%2e"]
)
def test_no_path_leads_an_upstream_to_another(shared: Shared, farm: Farm, path: str) -> None:
    router, upstream = shared
    before = len(farm.state(upstream)["seen"])
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=TIMEOUT_S)
    connection.request("POST", path, b'{"model": "m"}')  # other clients would resolve the path
    answer = connection.getresponse()
    assert answer.status == 400
    assert "'..'" in json.loads(answer.read())["error"]["message"]
    connection.close()
    assert len(farm.state(upstream)["seen"]) == before


def test_paths_that_do_not_exist_are_404_with_an_error_object(shared: Shared) -> None:
    for answer in (shared[0].get("/nope"), shared[0].get("/v1/completions")):
        assert answer.status_code == 404
        assert answer.headers["X-Request-Id"].startswith("req-")
        assert "There is no GET" in answer.json()["error"]["message"]


def test_limits_on_body_headers_and_compression_hold(shared: Shared, farm: Farm) -> None:
    router, _ = shared
    too_large = router.post(data=b" " * (33 * 2**20))
    assert too_large.status_code == 413
    assert "MAX_BODY_BYTES" in too_large.json()["error"]["message"]

    def chunks() -> object:
        for _ in range(33):
            yield b" " * 2**20

    assert router.post(data=chunks()).status_code == 413
    packed = router.post(data=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert packed.status_code == 415
    assert router.get("/v1/models", headers={"X-Long": "x" * 16_384}).ok
    too_long = router.get("/v1/models", headers={"X-Long": "x" * 40_000})
    assert too_long.status_code == 431
    assert "32768 bytes" in too_long.json()["error"]["message"]
    assert too_long.headers["X-Request-Id"].startswith("req-")


def test_an_upload_that_stops_is_the_clients_timeout(
    farm: Farm, start: type[RouterProcess]
) -> None:
    upstream = farm.new()
    router = start(upstream, batch_upstream=upstream, stream_idle=0.2).probed()
    with socket.create_connection(("127.0.0.1", router.port), TIMEOUT_S) as client:
        client.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
    assert router.upstreams()[upstream]["ready"]


@pytest.mark.parametrize("name", ["tgi", "dummy"])
def test_the_names_that_tgis_clients_send_mean_the_only_model(shared: Shared, name: str) -> None:
    assert shared[0].post(json={"model": name}).ok


def test_models_are_the_union_and_can_be_asked_for_one_by_one(
    farm: Farm, start: type[RouterProcess]
) -> None:
    first, second = farm.new(models=["a", "org/b"]), farm.new(models=["a", "c"])
    router = start(first, second).probed()
    listed = router.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [m["id"] for m in listed["data"]] == ["a", "org/b", "c"]
    assert router.get("/v1/models/org/b").json()["id"] == "org/b"
    missing = router.get("/v1/models/x")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    # Paths whose clients name no model need one that is unmistakable.
    unnamed = router.post("/generate", json={"inputs": "x"})
    assert unnamed.status_code == 422
    assert "a, org/b, c." in unnamed.json()["error"]
    asked = router.post("/generate", json={"inputs": "x"}, headers={"X-Model": "c"})
    assert asked.headers["X-Upstream-Origin"] == second
    assert start(first, default_model="org/b").probed().post("/generate", json={}).ok


def test_a_request_is_one_line_of_structured_log(farm: Farm, start: type[RouterProcess]) -> None:
    upstream = farm.new()
    router = start(upstream, debug=True).probed()
    router.post(headers={"X-Request-Id": "find-me"})

    def logged() -> list[dict[str, Any]]:
        return [line for line in router.logged("request") if line["request"] == "find-me"]

    lines = until(logged, "the line, which is written after the answer")
    assert len(lines) == 1
    assert lines[0]["upstream"] == upstream
    assert json.dumps(lines[0])
    assert (lines[0]["status"], lines[0]["attempts"], lines[0]["model"]) == (200, 1, "m")
