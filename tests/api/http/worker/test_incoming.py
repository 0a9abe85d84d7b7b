"""Requests gathered from pieces, against gunicorn's parser reading the same bytes at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http import get_parser  # type: ignore[import-untyped]
from gunicorn.http.errors import LimitRequestHeaders  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from api.http.errors import ApiError
from api.http.worker.incoming import MOST_HEAD_BYTES, Incoming

MOST_BODY_BYTES = 2000
PEER = ("127.0.0.1", 1)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(scope="module")
def client() -> Iterator[socket.socket]:
    """Never read."""
    with socket.socket() as client:
        yield client


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


@given(requests=st.lists(REQUESTS, min_size=1, max_size=3), cuts=st.lists(st.integers(1, 200)))
def test_a_request_is_ready_with_its_last_byte_and_read_as_gunicorn_reads_it(
    client: socket.socket, requests: list[bytes], cuts: list[int]
) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0)
    parser = get_parser(Config(), incoming, PEER)
    told = []
    for request in requests:
        here = 0
        for cut in [*cuts, len(request)]:
            piece = request[here : here + cut]
            here += len(piece)
            if piece:
                incoming.feed(piece)
                assert incoming.is_ready() == incoming.whole == (here == len(request))
        message = next(parser)
        told.append((message.uri, message.body.read()))
        assert parser.finish_body()
        incoming.next(parser.unreader.take_buffered())
        assert not incoming.begun
    assert told == parsed([b"".join(requests)], len(requests))


@given(requests=st.lists(REQUESTS, min_size=2, max_size=4))
def test_requests_that_come_at_once_are_read_one_by_one(
    client: socket.socket, requests: list[bytes]
) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0)
    parser = get_parser(Config(), incoming, PEER)
    incoming.feed(b"".join(requests))
    told = []
    for _ in requests:
        assert incoming.is_ready()
        assert incoming.whole
        message = next(parser)
        told.append((message.uri, message.body.read()))
        incoming.next(parser.unreader.take_buffered())
    assert told == parsed([b"".join(requests)], len(requests))


@pytest.mark.parametrize(
    "request_",
    [
        with_length(bytes(MOST_BODY_BYTES + 1))[:-MOST_BODY_BYTES],
        in_chunks([bytes(MOST_BODY_BYTES)] * 3)[: MOST_BODY_BYTES + 1000],
        b"GET /health HTTP/1.1\r\n" + b"x" * MOST_HEAD_BYTES,
        b"GET /health HTTP/1.1\nHost: x\n\n",
    ],
)
def test_too_large_or_malformed_requests_are_not_gathered(
    client: socket.socket, request_: bytes
) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0)
    incoming.feed(request_)
    assert incoming.is_ready()
    assert not incoming.whole


def test_a_head_that_does_not_end_is_an_error_of_gunicorn(client: socket.socket) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0)
    incoming.feed(b"GET /health HTTP/1.1\r\n" + b"x: 1\r\n" * MOST_HEAD_BYTES)
    with pytest.raises(LimitRequestHeaders):
        next(get_parser(Config(), incoming, PEER))


def test_requests_that_are_not_gathered_are_read_from_the_socket_until_the_deadline(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    body = bytes(MOST_BODY_BYTES + 1)
    incoming = Incoming(ours, MOST_BODY_BYTES, time.monotonic() + 60.0)
    incoming.feed(with_length(body)[:-1000])
    assert incoming.is_ready()
    theirs.sendall(body[-1000:-1])
    message = next(get_parser(Config(), incoming, PEER))
    assert message.body.read(len(body) - 1) == body[:-1]
    incoming.deadline_s = time.monotonic()
    with pytest.raises(TimeoutError):
        message.body.read(1)


def test_a_client_gets_time_for_what_it_has_sent(client: socket.socket) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 10.0)
    incoming.feed(bytes(32 * 1024))
    assert incoming.deadline_s == 10.5


def test_the_body_of_a_request_that_is_not_admitted_is_not_awaited(client: socket.socket) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0, lambda head: b"X-Key: 1" in head)
    request = with_length(bytes(100))
    incoming.feed(request[:-90])
    assert incoming.is_ready()
    assert not incoming.whole
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0, lambda head: b"X-Key: 1" in head)
    incoming.feed(request.replace(b"Host: x", b"X-Key: 1")[:-90])
    assert not incoming.is_ready()
    assert (incoming.held_bytes, incoming.missing_bytes) == (10, 90)


def test_a_refused_request_has_its_head_and_holds_no_body(client: socket.socket) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0)
    parser = get_parser(Config(), incoming, PEER)
    incoming.feed(with_length(bytes(100))[:-1])
    assert not incoming.is_ready()
    assert incoming.held_bytes == 99
    incoming.refuse(ApiError(503, "too much"))
    assert incoming.held_bytes == 0
    message = next(parser)
    assert message.uri == "/a?b"
    assert message.body.read() == b""


@pytest.mark.parametrize(
    "target",
    [
        b"/generate",
        b"/generate?a=b",
        b"/%67enerate",
        b"http://a:1/generate",
        b"HTTP://a/gener%61te#x",
    ],
)
def test_every_spelling_of_a_path_is_known_as_the_routes_know_it(
    client: socket.socket, target: bytes
) -> None:
    incoming = Incoming(client, MOST_BODY_BYTES, 0.0)
    incoming.feed(b"POST %b HTTP/1.1\r\n\r\n" % target)
    assert incoming.is_ready()
    assert (incoming.method, incoming.path) == (b"POST", b"/generate")
