"""Clients that leave, dawdle, stop reading, send too much, or are web pages of others."""

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
import requests
from aiohttp import web

from router.http.connections import Connections, set_waiting
from tests.router.conftest import Net, Pair, RouterProcess, raw_post, until
from tests.router.farm import TIMEOUT_S, Farm
from tests.support.process import closed_at_end

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nTransfer-Encoding: chunked\r\n\r\n"
UPLOAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
EVIL = "evil.example"
PAGE = "https://friend.example"


def sent(router: RouterProcess, data: bytes) -> socket.socket:
    """A client that has sent this."""
    client = closed_at_end(socket.socket())
    client.settimeout(TIMEOUT_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", router.port))
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
        with sent(router, raw_post(b'{"model": "m"}')):
            until(lambda: router.waiting() == 1, "a queued request")
        until(lambda: router.waiting() == 0, "the leaver to leave the queue")
    until(lambda: upstream.cancelled == 1, "the upstream to see the client go")
    until(lambda: router.in_flight() == 0, "the place to be free")
    assert router.metric("eb_router_departed_total") == 2
    assert len(upstream.bodies) == 1, "who leaves the queue is never sent on"


def test_a_client_that_stops_reading_loses_its_place(net: Net) -> None:
    upstream = net.upstream(events=200_000)
    router = net.router(upstream, stream_idle=0.3)
    sent(router, raw_post(b'{"model": "m", "stream": true}'))
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
        yield net.router(upstream, batch_upstream=upstream.url, client_idle=0.2, stream_idle=0.2)


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


def test_the_connection_that_has_waited_longest_for_its_client_goes_first() -> None:
    async def check() -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            set_waiting(request, False)
            arrived.set()
            await go_on.wait()
            set_waiting(request, True)
            return web.Response(text="done")

        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server is not None
        connections = Connections(runner.server, 3, 60)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(connections, "127.0.0.1", 0)
        address = listener.sockets[0].getsockname()
        async with asyncio.timeout(60):
            at_work, to_it = await asyncio.open_connection(*address)
            to_it.write(GET)
            await arrived.wait()
            clients = [await asyncio.open_connection(*address) for _ in range(6)]
            for reader, writer in clients[:4]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            go_on.set()
            for _, writer in clients[4:]:
                writer.write(GET)
            for reader in (at_work, *(reader for reader, _ in clients[4:])):
                assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
            for writer in (to_it, *(writer for _, writer in clients[4:])):
                writer.close()
        listener.close()
        await runner.cleanup()

    asyncio.run(check())


# --- web pages: what the router refuses, and what it passes on -------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/upstreams", "/metrics", "/health", "/nowhere"])
def test_a_page_that_rebinds_its_name_reads_nothing(shared: Pair, path: str) -> None:
    router = shared.router
    answer = router.get(path, headers={"Host": f"{EVIL}:{router.port}"})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "forbidden"
    assert EVIL in error["message"]
    assert "--allow-hosts" in error["message"]
    assert router.get(path, headers={"Host": f"localhost:{router.port}"}).status_code != 403


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files", "/generate", "/upstreams"])
def test_a_page_of_another_origin_reaches_no_upstream(shared: Pair, path: str) -> None:
    before = len(shared.upstream.bodies)
    for name, value in (("Origin", f"http://{EVIL}"), ("Sec-Fetch-Site", "cross-site")):
        assert shared.router.post(path, headers={name: value}).status_code == 403
    assert len(shared.upstream.bodies) == before


def test_an_upstream_sees_its_own_name_and_none_of_the_pages(net: Net) -> None:
    """So a server accepts what the router sends if it has the name that the router knows it by."""
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
        answer = router.get("/live", headers={"Origin": origin})
        assert answer.headers.get("Access-Control-Allow-Origin") == told
        assert answer.headers["Vary"] == "Origin"
    assert router.get("/live", headers={"Host": EVIL}).status_code == 403


def test_a_star_means_every_page_and_changes_need_a_key(net: Net, shared: Pair) -> None:
    strange = {"Host": EVIL, "Origin": f"http://{EVIL}", "Authorization": "Bearer sesame"}
    guarded = net.router(net.upstream(), cors_origin="*", api_keys="sesame")
    assert guarded.post(headers=strange).status_code == 200
    router = net.router(net.upstream(), cors_origin="*")
    refused = router.post(headers={**strange, "Host": f"127.0.0.1:{router.port}"})
    assert refused.status_code == 403
    assert "--cors-origin (* only with --api-keys)" in refused.json()["error"]["message"]
    answers = [router.post(json=body) for body in ({"model": "m"}, {"model": "none"})]
    answers += [refused, router.post(json={"model": "m", "stream": True})]
    for answer in answers:  # the page may read why
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    asked = {"Access-Control-Request-Headers": "authorization, x-stainless-os"}
    preflight, by_default = (
        requests.options(f"{asker.url}/v1/completions", headers=asked, timeout=TIMEOUT_S)
        for asker in (router, shared.router)
    )
    assert preflight.status_code == 204
    assert "x-stainless-os" in preflight.headers["Access-Control-Allow-Headers"]
    for answer in (by_default, shared.router.post()):
        assert not [name for name in answer.headers if name.startswith("Access-Control")]
