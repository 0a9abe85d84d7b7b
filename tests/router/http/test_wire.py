"""The bytes of HTTP/1.1 in both directions: framing, what is refused because two servers could
understand it differently, and connections that are used again."""

import asyncio
import json
import socket
from collections.abc import Sequence

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from router.http.connections import Connections
from router.http.server import ClientRequest
from router.rules.messages.errors import Response
from tests.router.conftest import Net, Pair
from tests.support.process import PATIENCE_S, closed_at_end, eventually
from tests.support.wire import all_of

HOST = b"Host: localhost\r\n"
LENGTH = b"POST /one?a=b HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nfirst"
CHUNKED = (
    b"POST /two HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=y\r\nsec\r\n3\r\nond\r\n0\r\nX-Trailer: t\r\n\r\n"
)
# as Java's client asks for HTTP/2 in its first request
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
UPGRADED = b"POST /three HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 5\r\n\r\nthird"
IN_CHUNKS = b"POST /four HTTP/1.1\r\n" + UPGRADE + CHUNKED.partition(b"\r\n")[2]
BARE = b"GET http://localhost/fi%76e HTTP/1.1\r\n" + UPGRADE + b"\r\n"
REQUESTS = {
    LENGTH: ["POST", "/one", "first"],
    CHUNKED: ["POST", "/two", "second"],
    UPGRADED: ["POST", "/three", "third"],
    IN_CHUNKS: ["POST", "/four", "second"],
    BARE: ["GET", "/five", ""],
}


class Wire(asyncio.Transport):
    """Takes what is written at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.closed = False
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def answered(pieces: Sequence[bytes], least: int) -> bytes:
    """What a connection writes that is sent these pieces, once it has answered so often."""

    async def echo(request: ClientRequest) -> Response:
        body = bytearray()
        await request.body.flow(body.extend)
        return Response(200, json.dumps([request.method, request.path, body.decode()]).encode())

    connections = Connections(echo, lambda request, headers: [], 9, 60)
    connection, wire = connections(), Wire()
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        while wire.written.count(b"HTTP/1.1") < least:
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await connections.close(0)
    return wire.written


@given(st.lists(st.sampled_from([*REQUESTS]), min_size=1, max_size=6), st.data())
@settings(max_examples=150)
def test_requests_are_answered_in_order_wherever_their_bytes_are_split(
    sent: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(sent)
    places = data.draw(st.lists(st.integers(0, len(whole)), max_size=8).map(sorted))
    pieces = [whole[i:j] for i, j in zip([0, *places], [*places, len(whole)], strict=True) if i < j]
    written = asyncio.run(answered(pieces, len(sent)))
    bodies = [one.partition(b"\r\n\r\n")[2] for one in written.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [json.loads(body) for body in bodies] == [REQUESTS[one] for one in sent]


def test_a_body_that_nobody_takes_yet_is_not_read_for_ever() -> None:
    async def check() -> None:
        go_on, piece, sizes = asyncio.Event(), bytes(2**16), list[int]()

        async def answer(request: ClientRequest) -> Response:
            await go_on.wait()
            sizes.append(len(await request.body.whole(2**21)))
            return Response(200)

        connections = Connections(answer, lambda request, headers: [], 9, 60)
        connection, wire = connections(), Wire()
        connection.connection_made(wire)
        connection.data_received(LENGTH + POST + b"Content-Length: 1048576\r\n\r\n")
        sent = 0
        async with asyncio.timeout(PATIENCE_S):
            while wire.reads:
                connection.data_received(piece)
                sent += len(piece)
            assert sent < 2**20
            go_on.set()
            while len(sizes) < 2:
                if wire.reads and sent < 2**20:
                    connection.data_received(piece)
                    sent += len(piece)
                await asyncio.sleep(0)
            assert sizes == [5, 2**20]
            connection.connection_lost(None)
            await connections.close(0)

    asyncio.run(check())


POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
BODY = b'{"model": "m"}'
HIDDEN = b"GET /live HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 14\r\nContent-Length: 3\r\n\r\n" + BODY,
        POST + b"Content-Length: 14, 14\r\n\r\n" + BODY,
        POST + b"Content-Length: +14\r\n\r\n" + BODY,
        POST + b"Content-Length : 14\r\n\r\n" + BODY,
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"X: a\r\n folded\r\nContent-Length: 14\r\n\r\n" + BODY,
        POST + b"Transfer-Encoding: chunked\r\n\r\ne\n" + BODY + b"\n0\n\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n0x0e\r\n" + BODY + b"\r\n0\r\n\r\n",
        POST.replace(b"\r\n", b"\n") + b"\n",
        b"GET /live\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_two_servers_could_understand_differently_ends_the_connection(
    shared: Pair, head: bytes
) -> None:
    before = len(shared.upstream.bodies)
    client = closed_at_end(socket.create_connection(("127.0.0.1", shared.router.port), PATIENCE_S))
    client.sendall(head + HIDDEN)
    told = all_of(client)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert told.count(b"HTTP/1.1") == 1, "what follows is no request"
    assert len(shared.upstream.bodies) == before


def test_heads_expectations_and_clients_of_http_1_0_get_what_they_can_read(shared: Pair) -> None:
    def asked(data: bytes) -> bytes:
        address = ("127.0.0.1", shared.router.port)
        client = closed_at_end(socket.create_connection(address, PATIENCE_S))
        client.sendall(data)
        return all_of(client)

    ending = b"Connection: close\r\n"
    head = asked(b"HEAD /health HTTP/1.1\r\n" + HOST + ending + b"\r\n")
    assert (head[9:12], head.partition(b"\r\n\r\n")[2]) == (b"200", b"")
    assert b"Content-Length: 0" not in head
    stream = b'{"model": "m", "stream": true}'
    old = asked(POST.replace(b"1.1", b"1.0") + b"Content-Length: 30\r\n\r\n" + stream)
    assert b"Transfer-Encoding" not in old
    assert old.endswith(b"data: [DONE]\n\n")
    kept = b"GET /live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    twice = asked(kept + b"GET /live HTTP/1.0\r\n\r\n")
    assert (twice.count(b"200 OK"), twice.count(b"Connection: keep-alive")) == (2, 1)
    client = closed_at_end(socket.create_connection(("127.0.0.1", shared.router.port), PATIENCE_S))
    client.sendall(POST + ending + b"Content-Length: 14\r\nExpect: 100-continue\r\n\r\n")
    assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(BODY)
    assert all_of(client).startswith(b"HTTP/1.1 200")
    many = b"".join(b"X-%d: a\r\n" % number for number in range(300))
    assert asked(POST + many + b"\r\n").startswith(b"HTTP/1.1 431")


OK = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def test_a_server_that_closes_an_idle_connection_costs_no_request(net: Net) -> None:
    """Its answer does not say so, and it may do it when the next request is on its way."""
    upstream = net.upstream(said=OK, said_to="DELETE")
    router = net.router(upstream, batch_upstream=upstream.url)
    address = f"{router.url}/v1/files/file-1"
    assert {requests.delete(address, timeout=PATIENCE_S).status_code for _ in range(100)} == {200}


def test_what_a_server_sends_unasked_reaches_no_client(net: Net) -> None:
    twice = OK + OK.replace("{}", "[]")
    router = net.router(net.upstream(said=twice, said_to="POST", stalls=True))
    assert {router.post().content for _ in range(20)} == {b"{}"}
    early = "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" + OK
    router = net.router(net.upstream(said=early, said_to="POST", stalls=True))
    assert router.post().content == b"{}"
    eventually(lambda: router.in_flight() == 0, "the places to be free")
