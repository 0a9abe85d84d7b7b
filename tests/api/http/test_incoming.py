"""Requests gathered from pieces, against gunicorn's parser reading the same bytes at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http import get_parser  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from api.http.errors import ApiError
from api.http.worker.incoming import MOST_HEAD_BYTES, Incoming
from tests.api.conftest import Pair

MOST_BODY_BYTES = 2000
PEER = ("127.0.0.1", 1)


@pytest.fixture(scope="module")
def client() -> Iterator[socket.socket]:
    """Never read."""
    with socket.socket() as client:
        yield client


def incoming_of(client: socket.socket, deadline_s: float = 0.0, **options: Any) -> Incoming:
    return Incoming(client, Config(), PEER, MOST_BODY_BYTES, deadline_s, **options)


def with_length(body: bytes) -> bytes:
    return b"POST /a?b HTTP/1.1\r\nHost: x\r\ncontent-length:%d\r\n\r\n%b" % (len(body), body)


def in_chunks(pieces: list[bytes]) -> bytes:
    chunks = [b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    trailers = b"X-Trailer: 1\r\n" if len(pieces) % 2 else b""
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
    return head + b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


BODIES = st.binary(max_size=200) | st.just(b"\r\n0\r\n\r\n")
REQUESTS = st.one_of(
    st.just(b"GET /health HTTP/1.1\r\n\r\n"),
    st.builds(with_length, BODIES),
    st.builds(in_chunks, st.lists(BODIES.filter(len), max_size=4)),
)


def parsed(source: Any, number: int) -> list[tuple[str, bytes]]:
    parser = get_parser(Config(), source, PEER)
    return [(request.uri, request.body.read()) for _, request in zip(range(number), parser)]  # noqa: B905


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
    cuts=st.none() | st.lists(st.integers(1, 200)),
)
def test_a_request_is_ready_with_its_last_byte_and_read_as_gunicorn_reads_it(
    client: socket.socket, requests: list[bytes], cuts: list[int] | None
) -> None:
    """In pieces, or all requests at once, of which each is read for itself."""
    incoming = incoming_of(client)
    if cuts is None:
        incoming.feed(b"".join(requests))
    told = []
    for request in requests:
        here = 0
        for cut in [] if cuts is None else [*cuts, len(request)]:
            piece = request[here : here + cut]
            here += len(piece)
            if piece:
                incoming.feed(piece)
                assert incoming.is_ready() == incoming.whole == (here == len(request))
        assert incoming.is_ready()
        assert incoming.whole
        message = next(incoming)
        told.append((message.uri, message.body.read()))
        assert incoming.finish()
        assert cuts is None or not incoming.begun
    assert told == parsed([b"".join(requests)], len(requests))


@pytest.mark.parametrize(
    "request_",
    [
        with_length(bytes(MOST_BODY_BYTES + 1))[:-MOST_BODY_BYTES],
        in_chunks([bytes(MOST_BODY_BYTES)] * 3)[: MOST_BODY_BYTES + 1000],
    ],
)
def test_bodies_that_are_too_large_are_not_gathered(client: socket.socket, request_: bytes) -> None:
    incoming = incoming_of(client)
    incoming.feed(request_)
    assert incoming.is_ready()
    assert not incoming.whole


@pytest.mark.parametrize("begins", [b"", b"\r\n"])
@pytest.mark.parametrize(
    ("line", "length"),
    [
        (b"Content-Length: 5", 5),
        (b"content-length:\t5 ", 5),
        (b"Content-Length: %b5" % (b"0" * 30), 5),
        (b"Content-Length: 9999999999999999999", 9999999999999999999),
        (b"Transfer-Encoding: gzip, CHUNKED", None),
        (b"X-A: 1\r\nExpect: 100-Continue", 0),
    ],
)
def test_a_head_says_the_same_of_its_body_here_and_where_it_is_read(
    client: socket.socket, begins: bytes, line: bytes, length: int | None
) -> None:
    head = begins + b"POST /a HTTP/1.1\r\n%b\r\n\r\n" % line
    incoming = incoming_of(client)
    incoming.feed(head)
    ready = incoming.is_ready()
    assert (ready, incoming.whole) == (length in (0, 9999999999999999999), length == 0)
    reader = next(get_parser(Config(), [head], PEER)).body.reader
    assert getattr(reader, "length", None) == length


@pytest.mark.parametrize(("version", "expects"), [(b"1.1", True), (b"1.0", False)])
def test_100_continue_is_for_clients_that_know_it(
    client: socket.socket, version: bytes, expects: bool
) -> None:
    incoming = incoming_of(client)
    incoming.feed(b"POST /a HTTP/%b\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n" % version)
    assert not incoming.is_ready()
    assert incoming.expects == expects


@pytest.mark.parametrize(
    ("head", "path", "status"),
    [
        (b"POST /v1/a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "/v1/a", 400),
        (b"POST /v1/a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "/v1/a", 400),
        (b"POST /v1/a HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000), "/v1/a", 400),
        (b"POST /v1/a HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n", "/v1/a", 400),
        (b"POST /v1/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "/v1/a", 400),
        (b"POST /v1/a HTTP/1.1\r\nExpect: a miracle\r\n\r\n", "/v1/a", 417),
        (b"\r\nGET /v1/a HTTP/1.1\nHost: x\n\n", "/v1/a", 400),
        (b"GET /v1/a HTTP/1.1\r\n" + b"x: 1\r\n" * MOST_HEAD_BYTES, "/v1/a", 431),
        (b"GET /v1/%b HTTP/1.1\r\n\r\n" % (b"a" * 9000), "/v1/" + "a" * 96, 414),
        (b"GET /v1/\xff HTTP/1.1\r\n\r\n", "/v1/", 400),
        (b"\xff\x00\r\n\r\n", "/", 400),
    ],
)
def test_a_head_that_cannot_be_read_is_refused_by_the_api_of_its_path(
    client: socket.socket, head: bytes, path: str, status: int
) -> None:
    incoming = incoming_of(client)
    incoming.feed(head)
    assert incoming.is_ready()
    assert not incoming.whole
    assert incoming.refusal is not None
    assert incoming.refusal.status == status
    message = next(incoming)
    assert (message.path, message.body.read(), message.should_close()) == (path, b"", True)


@pytest.mark.parametrize(
    "body",
    [b"ZZ\r\n\r\n", b"-1\r\n\r\n", b"0x0\r\n\r\n", b"1\r\naXX0\r\n\r\n", b"0;\x01\r\n\r\n",
     b"0\r\nbad trailer\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n"],
)  # fmt: skip
def test_no_request_follows_malformed_chunks_that_nobody_has_read(
    client: socket.socket, body: bytes
) -> None:
    incoming = incoming_of(client)
    incoming.feed(in_chunks([]).partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + body)
    assert incoming.is_ready()
    next(incoming)
    assert not incoming.finish()


def test_requests_that_are_not_gathered_are_read_from_the_socket_until_the_deadline(
    pair: Pair,
) -> None:
    ours, theirs = pair
    body = bytes(MOST_BODY_BYTES + 1)
    incoming = incoming_of(ours, time.monotonic() + 60.0)
    incoming.feed(with_length(body)[:-1000])
    assert incoming.is_ready()
    theirs.sendall(body[-1000:-1])
    message = next(incoming)
    assert message.body.read(len(body) - 1) == body[:-1]
    incoming.deadline_s = time.monotonic()
    with pytest.raises(TimeoutError):
        message.body.read(1)


def test_a_client_gets_time_for_what_it_has_sent(client: socket.socket) -> None:
    incoming = incoming_of(client, 10.0)
    incoming.feed(bytes(32 * 1024))
    assert incoming.deadline_s == 10.5


def test_the_body_of_a_request_that_is_not_admitted_is_not_awaited(client: socket.socket) -> None:
    request = with_length(bytes(100))
    for field, awaited in ((b"Host: x", False), (b"X-Key: 1", True)):
        incoming = incoming_of(client, admits=lambda headers: ("X-KEY", "1") in headers)
        incoming.feed(request.replace(b"Host: x", field)[:-90])
        assert incoming.is_ready() is not awaited
        assert not incoming.whole
        assert incoming.missing_bytes == (90 if awaited else 0)
    assert incoming.held_bytes == 10


def test_a_refused_request_has_its_head_and_holds_no_body(client: socket.socket) -> None:
    incoming = incoming_of(client)
    incoming.feed(with_length(bytes(100))[:-1])
    assert not incoming.is_ready()
    assert incoming.held_bytes == 99
    incoming.refuse(ApiError(503, "too much"))
    assert incoming.held_bytes == 0
    message = next(incoming)
    assert message.uri == "/a?b"
    assert message.body.read() == b""


@pytest.mark.parametrize(
    "target",
    [b"/generate", b"/generate?a=b", b"/%67enerate", b"http://a:1/generate",
     b"HTTP://a/gener%61te#x"],
)  # fmt: skip
def test_every_spelling_of_a_path_is_known_as_the_routes_know_it(
    client: socket.socket, target: bytes
) -> None:
    incoming = incoming_of(client)
    incoming.feed(b"POST %b HTTP/1.1\r\n\r\n" % target)
    assert incoming.is_ready()
    assert (incoming.method, incoming.path) == (b"POST", b"/generate")
