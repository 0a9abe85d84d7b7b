"""Clients that leave, dawdle, stop reading, send too much, or are web pages of others."""

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import requests

from router.http.connections import Connections
from router.http.server import ClientRequest
from router.rules.messages.errors import Response
from tests.router.conftest import Net, Pair, RouterProcess
from tests.support.process import PATIENCE_S, closed_at_end, eventually
from tests.support.wire import all_of, head, post

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
EVIL = "evil.example"
PAGE = "https://friend.example"


def sent(router: RouterProcess, *data: bytes) -> socket.socket:
    """A client that has sent this."""
    client = closed_at_end(socket.socket())
    client.settimeout(PATIENCE_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", router.port))
    client.sendall(b"".join(data))
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_upstreams_work(net: Net, stream: bool) -> None:
    upstream = net.upstream(hold_after=1, hold=not stream)
    router = net.router(upstream)
    with sent(router, *post("/v1/completions", model="m", stream=stream)) as client:
        if stream:
            assert b"200 OK" in client.recv(4096)
        eventually(lambda: upstream.current == 1, "the request to run")
        with sent(router, *post("/v1/completions", model="m")):
            eventually(lambda: router.waiting() == 1, "a queued request")
        eventually(lambda: router.waiting() == 0, "the leaver to leave the queue")
    eventually(lambda: upstream.cancelled == 1, "the upstream to see the client go")
    eventually(lambda: router.in_flight() == 0, "the place to be free")
    assert router.metric("eb_router_departed_total") == 2
    assert len(upstream.bodies) == 1, "who leaves the queue is never sent on"


def test_a_client_that_stops_reading_loses_its_place(net: Net) -> None:
    upstream = net.upstream(events=200_000)
    router = net.router(upstream, stream_idle=0.3)
    sent(router, *post("/v1/completions", model="m", stream=True))
    eventually(lambda: upstream.bodies, "the request to run")
    eventually(lambda: upstream.current == 0, "the place to be taken back")
    assert upstream.cancelled == 1
    assert router.metric("eb_router_broken_answers_total") == 0, "it is not the upstream's fault"


@pytest.fixture(scope="module")
def hasty() -> Iterator[RouterProcess]:
    with Net() as net:
        upstream = net.upstream()
        yield net.router(upstream, batch_upstream=upstream.url, client_idle=0.2, stream_idle=0.2)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"", [b""]),
        (b"POST /v1/comple", [b"", b"408"]),
        (head("/v1/completions", 100) + b"{", [b"408"]),
        (head("/v1/files", 9), [b"408"]),
    ],
    ids=["nothing", "half a head", "half a body", "half an upload"],
)
def test_a_client_that_dawdles_is_dropped_and_the_upstream_is_not_blamed(
    hasty: RouterProcess, data: bytes, statuses: list[bytes]
) -> None:
    assert all_of(sent(hasty, data))[9:12] in statuses
    assert all(u["ready"] for u in hasty.upstreams().values())


def test_limits_on_body_headers_and_compression_hold(shared: Pair) -> None:
    router = shared.router
    packed = {"Content-Encoding": "gzip"}
    assert router.post(data=b" " * (33 * 2**20)).status_code == 413
    assert router.post(data=(b" " * 2**20 for _ in range(33))).status_code == 413
    assert router.post(data=gzip.compress(b"{}"), headers=packed).status_code == 415
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
        eventually(lambda: router.in_flight() == 1, "a large request to be held")
        for refused in (router.post(data=large), router.post(data=iter(pieces))):
            assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
        small = pool.submit(router.post)
        eventually(lambda: router.in_flight() == 2, "a small request beside it")
        upstream.release()
        assert first.result().ok
        assert small.result().ok
    assert router.post(data=iter(pieces)).ok, "what was held is given back"
    answer = bytes(range(256)) * 1024
    upstream.behave(raw=answer.decode("latin-1"))
    assert router.post().content == answer, "an answer that may not be held is passed on"


def test_the_connection_that_has_waited_longest_for_its_client_goes_first() -> None:
    async def check() -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def answer(request: ClientRequest) -> Response:
            arrived.set()
            await go_on.wait()
            return Response(200, b"done")

        most_two = Connections(answer, lambda request, headers: [], 2, 60)
        listener = await asyncio.get_running_loop().create_server(most_two, "127.0.0.1", 0)
        address = listener.sockets[0].getsockname()
        async with asyncio.timeout(60):
            at_work = await asyncio.open_connection(*address)
            at_work[1].write(GET)
            await arrived.wait()
            longest, last = [await asyncio.open_connection(*address) for _ in range(2)]
            with suppress(ConnectionResetError):
                assert await longest[0].read() == b""
            go_on.set()
            last[1].write(GET)
            for reader, _ in (at_work, last):
                assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
            for _, writer in (at_work, longest, last):
                writer.close()
        listener.close()

    asyncio.run(check())


# --- web pages: what the router refuses, and what it passes on -------------------------------


def test_a_page_that_rebinds_its_name_or_has_another_origin_reaches_nothing(shared: Pair) -> None:
    router, before = shared.router, len(shared.upstream.bodies)
    for path in ("/v1/models", "/upstreams", "/metrics", "/health", "/nowhere"):
        refused = router.get(path, headers={"Host": f"{EVIL}:{router.port}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert router.get(path, headers={"Host": f"localhost:{router.port}"}).status_code != 403
    for path in ("/v1/completions", "/v1/files", "/generate", "/upstreams"):
        for name, value in (("Origin", f"http://{EVIL}"), ("Sec-Fetch-Site", "cross-site")):
            assert router.post(path, headers={name: value}).status_code == 403
    assert len(shared.upstream.bodies) == before


def test_an_upstream_sees_its_own_name_and_nothing_of_allowed_pages(net: Net) -> None:
    upstream = net.upstream()
    named = f"localhost:{upstream.port}"
    router = net.router(f"http://{named}", cors_origin=PAGE, allow_hosts="front,.svc")
    for headers in (
        {"Host": "front:8000"},
        {"Host": "eb-router.default.svc", "Origin": PAGE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": router.url},
    ):
        assert router.post(headers=headers).status_code == 200
        assert upstream.headers[-1]["host"] == named
        assert not {"origin", "sec-fetch-site"} & set(upstream.headers[-1])
    for origin, told in ((PAGE, PAGE), (f"http://{EVIL}", None)):
        asked = {"Origin": origin, "Access-Control-ClientRequest-Headers": "authorization"}
        for method in ("OPTIONS", "POST"):  # a preflight, and what the page may read
            address = f"{router.url}/v1/completions"
            answer = requests.request(method, address, headers=asked, timeout=PATIENCE_S)
            assert answer.headers.get("Access-Control-Allow-Origin") == told
    assert router.get("/live", headers={"Host": EVIL}).status_code == 403
