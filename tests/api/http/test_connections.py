"""Requests gathered from pieces, against gunicorn's parser reading the same bytes at once. The
intake: which requests get a handler, in which order, and which are pending. Their threads. The
thread that writes all streams and the watch over sockets, on socket pairs; turns of long texts,
between which others have the processor."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http import get_parser  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from api.http import body
from api.http.body import PER_S, SHORT, EncodingTurns
from api.http.departed import Departures
from api.http.errors import ApiError
from api.http.worker.connection import (
    BYTES_PER_S,
    MOST_HEAD_BYTES,
    MOST_UNSENT_BYTES,
    Incoming,
    Outgoing,
)
from api.http.worker.handlers import ARRIVED_S, Intake, Threads
from api.http.writer import Writer
from app import create_app
from serving.config import Config as ServerConfig
from tests.api.conftest import Pair
from tests.support.dialects import NATIVE, ask
from tests.support.hash_app import byte_tokenizer, load
from tests.support.process import PATIENCE_S

MOST_BODY_BYTES = 2000
PEER = ("127.0.0.1", 1)


def incoming_of(client: Any = None, deadline_s: float = 0.0, **options: Any) -> Incoming:
    """Without a client nothing is read of a socket."""
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
    requests: list[bytes], cuts: list[int] | None
) -> None:
    """In pieces, or all requests at once, of which each is read for itself."""
    incoming = incoming_of()
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
        assert incoming.finish_body()
        assert cuts is None or not incoming.begun
    assert told == parsed([b"".join(requests)], len(requests))


def test_bodies_that_are_too_large_are_not_gathered() -> None:
    for request in (
        with_length(bytes(MOST_BODY_BYTES + 1))[:-MOST_BODY_BYTES],
        in_chunks([bytes(MOST_BODY_BYTES)] * 3)[: MOST_BODY_BYTES + 1000],
    ):
        incoming = incoming_of()
        incoming.feed(request)
        assert incoming.is_ready()
        assert not incoming.whole


@pytest.mark.parametrize(("version", "expects"), [(b"1.1", True), (b"1.0", False)])
def test_100_continue_is_for_clients_that_know_it(version: bytes, expects: bool) -> None:
    incoming = incoming_of()
    incoming.feed(b"POST /a HTTP/%b\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n" % version)
    assert not incoming.is_ready()
    assert incoming.expects == expects


@pytest.mark.parametrize(
    ("head", "path", "status"),
    [
        (b"POST /v1/a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "/v1/a", 400),
        (b"POST /v1/a HTTP/1.1\r\nExpect: a miracle\r\n\r\n", "/v1/a", 417),
        (b"\r\nGET /v1/a HTTP/1.1\nHost: x\n\n", "/v1/a", 400),
        (b"GET /v1/a HTTP/1.1\r\n" + b"x: 1\r\n" * MOST_HEAD_BYTES, "/v1/a", 431),
        (b"GET /v1/%b HTTP/1.1\r\n\r\n" % (b"a" * 9000), "/v1/" + "a" * 96, 414),
        (b"GET /v1/\xff HTTP/1.1\r\n\r\n", "/v1/", 400),
        (b"\xff\x00\r\n\r\n", "/", 400),
    ],
)
def test_a_head_that_cannot_be_read_is_refused_by_the_api_of_its_path(
    head: bytes, path: str, status: int
) -> None:
    incoming = incoming_of()
    incoming.feed(head)
    assert incoming.is_ready()
    assert not incoming.whole
    assert incoming.refusal is not None
    assert incoming.refusal.status == status
    message = next(incoming)
    assert (message.path, message.body.error) == (path, incoming.refusal)
    assert message.should_close()


@pytest.mark.parametrize(
    "body",
    [b"ZZ\r\n\r\n", b"-1\r\n\r\n", b"0x0\r\n\r\n", b"1\r\naXX0\r\n\r\n", b"0;\x01\r\n\r\n",
     b"0\r\nbad trailer\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n"],
)  # fmt: skip
def test_no_request_follows_malformed_chunks_that_nobody_has_read(body: bytes) -> None:
    incoming = incoming_of()
    incoming.feed(in_chunks([]).partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + body)
    assert incoming.is_ready()
    next(incoming)
    assert not incoming.finish_body()


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


@pytest.mark.parametrize(
    "target",
    [b"/generate", b"/generate?a=b", b"/%67enerate", b"http://a:1/generate",
     b"HTTP://a/gener%61te#x"],
)  # fmt: skip
def test_every_spelling_of_a_path_is_known_as_the_routes_know_it(target: bytes) -> None:
    incoming = incoming_of()
    incoming.feed(b"\r\nPOST %b HTTP/1.1\r\n\r\n" % target)  # an empty line may come first
    assert incoming.is_ready()
    assert (incoming.method, incoming.path) == (b"POST", b"/generate")


def test_a_client_gets_time_only_for_what_it_sends_and_reads(pair: Pair) -> None:
    incoming = incoming_of(deadline_s=10.0)
    incoming.feed(bytes(BYTES_PER_S // 2))
    assert incoming.deadline_s == 10.5
    outgoing = Outgoing(pair[0], 3600.0)
    outgoing.post(bytes(8_000_000))  # more than a socket holds
    first_s, kept = outgoing.deadline_s, len(outgoing.rest)
    assert kept > MOST_UNSENT_BYTES
    outgoing.flush()
    assert outgoing.deadline_s == first_s
    pair[1].recv(1 << 16)
    outgoing.flush()
    read_s = (kept - len(outgoing.rest)) / BYTES_PER_S
    assert outgoing.deadline_s == pytest.approx(first_s + read_s)


# --- the intake -------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["arrive", "finish", "leave"]), max_size=60), st.integers(1, 4))
def test_requests_are_handled_in_order_of_arrival_and_never_more_than_may_be(
    events: list[str], most: int
) -> None:
    intake = Intake[int](lambda: most, clock=lambda: 0.0)
    handled, gone = list[int](), set[int]()
    arrived = 0
    for event in events:
        if event == "arrive":
            if intake.pending or intake.handled >= intake.most():
                intake.add(arrived)
            else:
                intake.handled += 1
                handled.append(arrived)
            arrived += 1
        elif event == "finish" and intake.handled:
            intake.handled -= 1
            while (one := intake.take()) is not None:
                handled.append(one[0])
        elif event == "leave" and intake.pending:
            leaving = list(intake.pending)[-1]
            intake.leave(leaving)
            gone.add(leaving)
        assert intake.handled <= most
        assert not intake.pending or intake.handled == most
    assert handled == sorted(handled)
    assert {*handled, *intake.pending, *gone} == set(range(arrived))


def test_no_request_is_pending_for_longer_than_the_patience() -> None:
    now_s = [0.0]
    intake = Intake[str](lambda: 0, patience_s=5.0, clock=lambda: now_s[0])
    intake.add("first")
    assert intake.take() is None
    now_s[0] = 5.0
    assert intake.take() == ("first", 0.0)


def test_pending_requests_wait_for_a_lost_model_and_arrivals_are_refused() -> None:
    app = create_app(ServerConfig(mode="dynamic"), load, byte_tokenizer())
    manager, intake = app.extensions["engine"].manager, app.extensions["intake"]
    assert intake.most() == math.inf
    manager.model = SimpleNamespace(lost="gone", context=10)
    assert intake.most() < math.inf
    manager.queue.open(10, 10)
    too_long = partial(ask, app.test_client(), NATIVE, "x" * 10)
    assert too_long().status_code == 503
    token = ARRIVED_S.set(0.0)
    try:
        assert too_long().status_code == 400
        manager.queue.drain()
        assert too_long().status_code == 503
    finally:
        ARRIVED_S.reset(token)
    assert intake.most() == math.inf


def test_work_for_which_no_thread_can_start_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, ran = Threads(1), SimpleQueue[str]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(lambda: ran.put("refused"))
    threads.submit(lambda: ran.put("next"))
    assert ran.get(timeout=PATIENCE_S) == "next"
    threads.shutdown(wait=False)


MORE_THAN_A_SOCKET_HOLDS = b"x" * 4_000_000


def test_a_stream_waits_for_its_client_and_fails_for_its_handler(pair: Pair) -> None:
    request: Any = SimpleNamespace(updated=threading.Event())
    numbers = [b"%02d" % number for number in range(100)]

    def events() -> Iterator[bytes | None]:
        yield MORE_THAN_A_SOCKET_HOLDS
        for number in numbers:
            yield None
            yield number
        raise ZeroDivisionError("a fault")

    told = Writer().serve([request], Outgoing(pair[0], PATIENCE_S), events(), chunked=False)
    with ThreadPoolExecutor() as pool, pair[1].makefile("rb") as reader:
        body = pool.submit(b"".join, told)
        assert reader.read(1) == b"x"  # its writing has begun
        for _ in numbers:
            request.updated.set()
        assert not body.done()
        rest = reader.read(len(MORE_THAN_A_SOCKET_HOLDS) - 1)
        while not body.done():
            request.updated.set()
            time.sleep(0.001)
        with pytest.raises(ZeroDivisionError, match="a fault"):
            body.result(PATIENCE_S)
        assert rest + reader.read(200) == b"".join([MORE_THAN_A_SOCKET_HOLDS[1:], *numbers])


def test_no_departure_ends_the_watch_over_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """While the thread is held, two leave at once. The first cannot be cancelled; the handler of
    the second is done, its socket closed, before its turn."""
    departures, held = Departures(), threading.Event()
    pairs = [socket.socketpair() for _ in range(3)]
    unwatch, left = list[Callable[[], object]](), list[int]()

    def leave(number: int) -> None:
        assert held.wait(PATIENCE_S)
        if number:
            left.append(number)
            unwatch[3 - number]()
            pairs[3 - number][0].close()
            raise ZeroDivisionError("a fault")

    for number, (ours, _) in enumerate(pairs):
        unwatch.append(departures.watch(ours, partial(leave, number)))
    for _, theirs in pairs:
        theirs.close()
    held.set()
    _flush(departures)
    assert len(left) == 1
    assert "a fault" in caplog.text
    for ours, _ in pairs:
        ours.close()


def test_data_is_not_read_and_is_not_a_departure(pair: Pair) -> None:
    ours, theirs = pair
    departures, left = Departures(), threading.Event()
    departures.watch(ours, left.set)
    theirs.sendall(b"next request")
    _flush(departures)
    assert not left.is_set()
    assert ours.recv(100) == b"next request"


def _flush(departures: Departures) -> None:
    """Returns when a departure after all others has been reported."""
    ours, theirs = socket.socketpair()
    left = threading.Event()
    departures.watch(ours, left.set)
    theirs.close()
    assert left.wait(PATIENCE_S)
    ours.close()


LONG = SHORT + 1


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_turn_there_is_none_for_twice_as_long(fails: bool) -> None:
    now_s, slept_s = [100.0], list[float]()
    turn = EncodingTurns(lambda: now_s[0], slept_s.append).of
    with contextlib.suppress(KeyError), turn(LONG):
        now_s[0] += 0.5
        if fails:
            raise KeyError
    with turn(SHORT):
        pass
    assert slept_s == [0.0]
    with turn(LONG):
        assert slept_s[1] == pytest.approx(1.0 + LONG / PER_S)


def test_a_long_text_that_waits_for_long_is_refused_and_a_short_one_never_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body, "MOST_WAIT_S", 0.0)
    turn = EncodingTurns().of
    refusal = pytest.raises(ApiError, match="other long texts")
    with turn(LONG), turn(SHORT), refusal as refused, turn(LONG):
        pass
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
