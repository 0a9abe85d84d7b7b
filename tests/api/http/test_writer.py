"""The thread that writes all streams, on socket pairs."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from api.http.worker.outgoing import Outgoing
from api.http.writer import COMMENT, Writer
from api.stream import text_event
from engine.inference import Inference
from requested import Sampling

PATIENCE_S = 30.0
MORE_THAN_A_SOCKET_HOLDS = b"x" * 4_000_000


class Pair(NamedTuple):
    ours: socket.socket
    theirs: socket.socket


class Told:
    """One request whose events a test decides; None ends them, an exception is raised."""

    def __init__(self) -> None:
        self.request = Inference([1], 1, Sampling(), 0.0)
        self._events: SimpleQueue[bytes | Exception | None] = SimpleQueue()

    def tell(self, *events: bytes | Exception | None) -> None:
        for event in events:
            self._events.put(event)
        self.request.updated.set()

    def events(self) -> Iterator[bytes | None]:
        while True:
            if self._events.empty():
                yield None
                continue
            event = self._events.get()
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event


@pytest.fixture
def pairs() -> Iterator[Iterator[Pair]]:
    with ExitStack() as stack:
        made = (Pair(*map(stack.enter_context, socket.socketpair())) for _ in itertools.count())
        yield (_patient(pair) for pair in made)


def _patient(pair: Pair) -> Pair:
    pair.theirs.settimeout(PATIENCE_S)
    return pair


@pytest.fixture
def serve() -> Serve:
    return Serve()


class Serve:
    """Each stream in a handler's thread, as gunicorn iterates over it."""

    def __init__(self, **options: float) -> None:
        self._writer = Writer(**options)

    def __call__(
        self, told: Told, client: socket.socket, *, chunked: bool = False
    ) -> Future[list[bytes]]:
        body: Future[list[bytes]] = Future()

        def handle() -> None:
            outgoing = Outgoing(client, PATIENCE_S)
            try:
                served = self._writer.serve(
                    [told.request], outgoing, told.events(), chunked=chunked
                )
                body.set_result(list(served))
            except Exception as error:
                body.set_exception(error)

        threading.Thread(target=handle, daemon=True).start()
        return body


def exactly(client: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = client.recv(min(size - len(received), 1 << 16))
        assert piece
        received += piece
    return bytes(received)


def test_an_event_of_a_text_is_what_json_writes() -> None:
    def made(text: str) -> dict[str, object]:
        return {"id": '"', "choices": [{"index": 0, "text": text, "logprobs": None}]}

    told = '"\\/</\x00\x1f\n\x7f\x80\u2028\ufeff\ud800 \udfff\ud800\U0001f600\ufdd0\uffff'
    written = json.dumps(made(told), separators=(",", ":"))
    assert text_event(made)(told) == b"data: " + written.encode() + b"\n\n"


def test_events_are_written_when_announced(pairs: Iterator[Pair], serve: Serve) -> None:
    pair, told = next(pairs), Told()
    told.tell(b"before, ")
    body = serve(told, pair.ours)
    assert exactly(pair.theirs, 8) == b"before, "
    for event in (b"one, ", b"two, "):
        told.tell(event)
        assert exactly(pair.theirs, 5) == event
    told.tell(b"three", None)
    assert exactly(pair.theirs, 5) == b"three"
    assert b"".join(body.result(PATIENCE_S)) == b""


def test_events_announced_together_are_one_chunk(pairs: Iterator[Pair], serve: Serve) -> None:
    pair, told = next(pairs), Told()
    told.tell(b"a" * 10, b"b" * 10, None)
    serve(told, pair.ours, chunked=True).result(PATIENCE_S)
    pair.ours.close()
    assert exactly(pair.theirs, 26) == b"14\r\n" + b"a" * 10 + b"b" * 10 + b"\r\n"
    assert pair.theirs.recv(1) == b""


def test_a_stream_that_falls_silent_gets_comments_until_its_next_event(
    pairs: Iterator[Pair],
) -> None:
    pair, told = next(pairs), Told()
    told.tell(b"one, ")
    body = Serve(heartbeat_s=0.01)(told, pair.ours, chunked=True)
    assert exactly(pair.theirs, 10) == b"5\r\none, \r\n"
    chunk = b"%X\r\n%b\r\n" % (len(COMMENT), COMMENT)
    assert exactly(pair.theirs, 2 * len(chunk)) == 2 * chunk
    told.tell(b"two", None)
    assert b"".join(body.result(PATIENCE_S)) == b""
    pair.ours.close()
    received = b"".join(iter(lambda: pair.theirs.recv(1 << 16), b""))
    assert received.replace(chunk, b"") == b"3\r\ntwo\r\n"


def test_a_flowing_stream_gets_no_comments(pairs: Iterator[Pair]) -> None:
    pair, told, heartbeat_s = next(pairs), Told(), 0.1
    Serve(heartbeat_s=heartbeat_s)(told, pair.ours)
    begun_s = [time.monotonic()]
    while begun_s[-1] < begun_s[0] + 3 * heartbeat_s:
        told.tell(b".")
        if exactly(pair.theirs, 1) != b".":  # right only if this machine kept the stream silent
            assert time.monotonic() - begun_s[-2:][0] >= heartbeat_s
            exactly(pair.theirs, len(COMMENT))  # the rest, and the event
            begun_s.clear()
        begun_s.append(time.monotonic())
    told.tell(None)


def test_a_client_that_does_not_read_keeps_only_itself_waiting(
    pairs: Iterator[Pair], serve: Serve
) -> None:
    stalled, other = next(pairs), next(pairs)
    told_stalled, told_other = Told(), Told()
    told_stalled.tell(MORE_THAN_A_SOCKET_HOLDS)
    body = serve(told_stalled, stalled.ours)
    assert exactly(stalled.theirs, 1) == b"x"  # its writing has begun
    serve(told_other, other.ours)
    for number in range(100):
        told_stalled.tell(b"%02d" % number)
        told_other.tell(b"%02d" % number)
        assert exactly(other.theirs, 2) == b"%02d" % number
    assert not body.done()
    told_other.tell(None)
    told_stalled.tell(None)

    rest = exactly(stalled.theirs, len(MORE_THAN_A_SOCKET_HOLDS) - 1 + 200)
    assert rest[-200:] == b"".join(b"%02d" % number for number in range(100))
    assert rest[:-200] == MORE_THAN_A_SOCKET_HOLDS[1:]
    assert b"".join(body.result(PATIENCE_S)) == b""


def test_events_that_fail_and_a_client_that_has_gone_end_their_own_stream(
    pairs: Iterator[Pair], serve: Serve
) -> None:
    failing, gone, other = next(pairs), next(pairs), next(pairs)
    told_failing, told_gone, told_other = Told(), Told(), Told()
    body_failing, body_gone = serve(told_failing, failing.ours), serve(told_gone, gone.ours)
    body = serve(told_other, other.ours)
    told_failing.tell(b"first", ZeroDivisionError("a fault"))
    with pytest.raises(ZeroDivisionError, match="a fault"):
        body_failing.result(PATIENCE_S)
    assert exactly(failing.theirs, 5) == b"first"  # earlier events were sent
    gone.theirs.close()
    told_gone.tell(b"this is not read")
    with pytest.raises(ConnectionError):
        body_gone.result(PATIENCE_S)
    told_other.tell(b"still here", None)
    assert exactly(other.theirs, 10) == b"still here"
    body.result(PATIENCE_S)


def test_events_from_many_threads_are_all_written(pairs: Iterator[Pair], serve: Serve) -> None:
    streams = [(next(pairs), Told()) for _ in range(20)]
    bodies = [serve(told, pair.ours) for pair, told in streams]

    def tell_all() -> None:
        for _ in range(100):
            for _, told in streams:
                told.tell(b".")

    threads = [threading.Thread(target=tell_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for pair, _ in streams:
        assert exactly(pair.theirs, 400) == b"." * 400
    for thread in threads:
        thread.join()
    for _, told in streams:
        told.tell(None)
    for body in bodies:
        body.result(PATIENCE_S)
