"""The thread that writes all streams, on socket pairs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from queue import SimpleQueue

import pytest

from api.http.worker.outgoing import Outgoing
from api.http.writer import COMMENT, Writer
from api.stream import text_event
from engine.inference import Inference
from requested import Sampling

PATIENCE_S = 30.0
MORE_THAN_A_SOCKET_HOLDS = b"x" * 4_000_000


class Stream:
    """One request whose events a test decides, served by a thread of its own as gunicorn iterates
    over it, and its client."""

    def __init__(
        self,
        writer: Writer,
        chunked: bool,
        pair: tuple[socket.socket, socket.socket],
        told: tuple[bytes | None, ...],
    ) -> None:
        self.ours, self.theirs = pair
        self.theirs.settimeout(PATIENCE_S)
        self.body: Future[bytes] = Future()
        self._request = Inference([1], 1, Sampling(), 0.0)
        self._events: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self.tell(*told)
        threading.Thread(target=self._serve, args=(writer, chunked), daemon=True).start()

    def tell(self, *events: bytes | Exception | None) -> None:
        """None ends them, an exception is raised."""
        for event in events:
            self._events.put(event)
        self._request.updated.set()

    def read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = self.theirs.recv(min(size - len(received), 1 << 16))
            assert piece
            received += piece
        return bytes(received)

    def end(self, *events: bytes) -> None:
        """All of it went to the client, and nothing to gunicorn."""
        self.tell(*events, None)
        assert self.body.result(PATIENCE_S) == b""

    def _serve(self, writer: Writer, chunked: bool) -> None:
        outgoing = Outgoing(self.ours, PATIENCE_S)
        try:
            told = writer.serve([self._request], outgoing, self._told(), chunked=chunked)
            self.body.set_result(b"".join(told))
        except Exception as error:
            self.body.set_exception(error)

    def _told(self) -> Iterator[bytes | None]:
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


Opens = Callable[..., Stream]


@pytest.fixture
def opens() -> Iterator[Opens]:
    """A stream of a writer that all streams share, unless the silence before a comment is given.
    `told`: its events before it is served."""
    shared = Writer()
    with ExitStack() as stack:

        def made(
            *told: bytes | None, chunked: bool = False, heartbeat_s: float | None = None
        ) -> Stream:
            ours, theirs = map(stack.enter_context, socket.socketpair())
            writer = shared if heartbeat_s is None else Writer(heartbeat_s)
            return Stream(writer, chunked, (ours, theirs), told)

        yield made


def test_an_event_of_a_text_is_what_json_writes() -> None:
    def made(text: str) -> dict[str, object]:
        return {"id": '"', "choices": [{"index": 0, "text": text, "logprobs": None}]}

    told = '"\\/</\x00\x1f\n\x7f\x80\u2028\ufeff\ud800 \udfff\ud800\U0001f600\ufdd0\uffff'
    written = json.dumps(made(told), separators=(",", ":"))
    assert text_event(made)(told) == b"data: " + written.encode() + b"\n\n"


def test_events_are_written_when_announced(opens: Opens) -> None:
    stream = opens(b"before, ")
    assert stream.read(8) == b"before, "
    for event in (b"one, ", b"two, "):
        stream.tell(event)
        assert stream.read(5) == event
    stream.end(b"three")
    assert stream.read(5) == b"three"


def test_events_announced_together_are_one_chunk(opens: Opens) -> None:
    stream = opens(b"a" * 10, b"b" * 10, None, chunked=True)
    stream.body.result(PATIENCE_S)
    stream.ours.close()
    assert stream.read(26) == b"14\r\n" + b"a" * 10 + b"b" * 10 + b"\r\n"
    assert stream.theirs.recv(1) == b""


def test_a_stream_that_falls_silent_gets_comments_until_its_next_event(opens: Opens) -> None:
    stream = opens(chunked=True, heartbeat_s=0.01)
    stream.tell(b"one, ")
    assert stream.read(10) == b"5\r\none, \r\n"
    chunk = b"%X\r\n%b\r\n" % (len(COMMENT), COMMENT)
    assert stream.read(2 * len(chunk)) == 2 * chunk
    stream.end(b"two")
    stream.ours.close()
    received = b"".join(iter(lambda: stream.theirs.recv(1 << 16), b""))
    assert received.replace(chunk, b"") == b"3\r\ntwo\r\n"


def test_a_flowing_stream_gets_no_comments(opens: Opens) -> None:
    heartbeat_s = 0.1
    stream, begun_s = opens(heartbeat_s=heartbeat_s), [time.monotonic()]
    while begun_s[-1] < begun_s[0] + 3 * heartbeat_s:
        stream.tell(b".")
        if stream.read(1) != b".":  # right only if this machine kept the stream silent
            assert time.monotonic() - begun_s[-2:][0] >= heartbeat_s
            stream.read(len(COMMENT))  # the rest, and the event
            begun_s.clear()
        begun_s.append(time.monotonic())
    stream.tell(None)


def test_a_client_that_does_not_read_keeps_only_itself_waiting(opens: Opens) -> None:
    stalled, other = opens(), opens()
    stalled.tell(MORE_THAN_A_SOCKET_HOLDS)
    assert stalled.read(1) == b"x"  # its writing has begun
    for number in range(100):
        stalled.tell(b"%02d" % number)
        other.tell(b"%02d" % number)
        assert other.read(2) == b"%02d" % number
    assert not stalled.body.done()
    other.tell(None)
    stalled.tell(None)
    rest = stalled.read(len(MORE_THAN_A_SOCKET_HOLDS) - 1 + 200)
    assert rest[-200:] == b"".join(b"%02d" % number for number in range(100))
    assert rest[:-200] == MORE_THAN_A_SOCKET_HOLDS[1:]
    assert stalled.body.result(PATIENCE_S) == b""


def test_events_that_fail_and_a_client_that_has_gone_end_their_own_stream(opens: Opens) -> None:
    failing, gone, other = opens(), opens(), opens()
    failing.tell(b"first", ZeroDivisionError("a fault"))
    with pytest.raises(ZeroDivisionError, match="a fault"):
        failing.body.result(PATIENCE_S)
    assert failing.read(5) == b"first"  # earlier events were sent
    gone.theirs.close()
    gone.tell(b"this is not read")
    with pytest.raises(ConnectionError):
        gone.body.result(PATIENCE_S)
    other.end(b"still here")
    assert other.read(10) == b"still here"
