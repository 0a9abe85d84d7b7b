"""Clients that leave, dawdle, stop reading or send too much."""

import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.router.conftest import Net, Pair, RouterProcess, raw_post, until
from tests.router.farm import TIMEOUT_S, Farm
from tests.support.process import closed_at_end

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nTransfer-Encoding: chunked\r\n\r\n"
UPLOAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"


def sent(router: RouterProcess, data: bytes) -> socket.socket:
    """A client that has sent this."""
    address = ("127.0.0.1", router.port)
    client = closed_at_end(socket.create_connection(address, timeout=TIMEOUT_S))
    client.sendall(data)
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_upstreams_work(net: Net, stream: bool) -> None:
    upstream = net.upstream(hold_after=1, hold=not stream)
    router = net.router(upstream)
    body = json.dumps({"model": "m", "stream": stream}).encode()
    with sent(router, raw_post(body)) as client:
        if stream:
            assert b"200 OK" in client.recv(4096)
        until(lambda: upstream.current == 1, "the request to run")
    until(lambda: upstream.cancelled == 1, "the upstream to see the client go")
    until(lambda: router.in_flight() == 0, "the place to be free")
    assert router.metric("eb_router_departed_total") == 1


def test_a_client_that_leaves_the_queue_is_never_sent_on(net: Net) -> None:
    upstream = net.upstream(hold=True)
    router = net.router(upstream)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(router.post)
        until(lambda: router.in_flight() == 1, "a running request")
        with sent(router, raw_post(b'{"model": "m"}')):
            until(lambda: router.waiting() == 1, "a queued request")
        until(lambda: router.waiting() == 0, "the leaver to leave the queue")
        net.release(upstream)
        assert running.result().ok
    assert len(upstream.bodies) == 1


def test_a_client_that_stops_reading_loses_its_place(net: Net) -> None:
    upstream = net.upstream(events=200_000)
    router = net.router(upstream, stream_idle=0.3)
    client = closed_at_end(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", router.port))
    client.sendall(raw_post(b'{"model": "m", "stream": true}'))
    until(lambda: upstream.bodies, "the request to run")
    until(lambda: upstream.current == 0, "the place to be taken back")
    assert upstream.cancelled == 1
    assert router.metric("eb_router_broken_answers_total") == 0, "it is not the upstream's fault"


def test_a_body_with_broken_chunks_is_400_and_the_next_request_is_served(shared: Pair) -> None:
    answer = sent(shared.router, CHUNKED + b"zz\r\n{}\r\n").recv(4096)
    assert b" 400 " in answer.splitlines()[0]
    assert shared.router.post().ok


@pytest.fixture(scope="module")
def hasty(farm: Farm) -> Iterator[RouterProcess]:
    with ExitStack() as stack:
        net = Net(farm, stack)
        upstream = net.upstream()
        yield net.router(upstream, batch_upstream=upstream.url, client_idle=0.5, stream_idle=0.2)


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (b"", [b""]),
        (b"POST /v1/comple", [b"", b"408"]),
        (b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nContent-Length: 100\r\n\r\n{", [b"408"]),
        (UPLOAD, [b"408"]),
    ],
    ids=["nothing", "half a head", "half a body", "half an upload"],
)
def test_a_client_that_dawdles_is_dropped_and_the_upstream_is_not_blamed(
    hasty: RouterProcess, data: bytes, answers: list[bytes]
) -> None:
    client = sent(hasty, data)
    answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer[9:12] in answers, "the status"
    assert all(u["ready"] for u in hasty.upstreams().values())


def test_limits_on_body_headers_and_compression_hold(shared: Pair) -> None:
    router = shared.router
    too_large = router.post(data=b" " * (33 * 2**20))
    assert too_large.status_code == 413
    assert "MAX_BODY_BYTES" in too_large.json()["error"]["message"]
    assert router.post(data=(b" " * 2**20 for _ in range(33))).status_code == 413
    packed = router.post(data=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert packed.status_code == 415
    assert router.get("/v1/models", headers={"X-Long": "x" * 16_384}).ok
    too_long = router.get("/v1/models", headers={"X-Long": "x" * 40_000})
    assert too_long.status_code == 431
    assert "32768 bytes" in too_long.json()["error"]["message"]
    assert too_long.headers["X-Request-Id"].startswith("req-")


def test_no_more_bytes_of_bodies_are_held_than_allowed(net: Net) -> None:
    upstream = net.upstream(hold=True)
    bounds = {"max_body_bytes": 100_000, "max_held_bytes": 150_000}
    router = net.router(upstream, max_connect_per_upstream=8, **bounds)
    large = json.dumps({"model": "m", "prompt": "x" * 90_000}).encode()
    pieces = [large[at : at + 10_000] for at in range(0, len(large), 10_000)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(router.post, data=large)
        until(lambda: router.in_flight() == 1, "a large request to be held")
        for refused in (router.post(data=large), router.post(data=iter(pieces))):
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
            assert "MAX_HELD_BYTES" in refused.json()["error"]["message"]
        small = pool.submit(router.post)
        until(lambda: router.in_flight() == 2, "a small request beside it")
        net.release(upstream)
        assert first.result().ok
        assert small.result().ok
    assert router.post(data=iter(pieces)).ok, "what was held is given back"
    answer = bytes(range(256)) * 1024
    upstream.behave(raw=answer.decode("latin-1"))
    assert router.post().content == answer, "an answer that may not be held is passed on"
