"""The thread that writes all streams and the watch over sockets, on socket pairs; turns of long
texts, between which others have the processor."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from queue import SimpleQueue

import pytest

from api.http import turns
from api.http.departed import Departures
from api.http.errors import ApiError
from api.http.turns import PER_S, SHORT, Turns
from api.http.worker.outgoing import Outgoing
from api.http.writer import COMMENT, Writer
from api.stream import text_event
from engine.inference import Inference
from requested import Sampling
from serving.config import Config
from tests.api.conftest import Pair, serving

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
    stream = opens(b"one, ", chunked=True, heartbeat_s=0.01)
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
    failing, odd, gone, other = opens(), opens(), opens(), opens()
    odd.tell("no bytes")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        odd.body.result(PATIENCE_S)
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


def test_a_closed_connection_is_reported_once_to_the_watch_that_lasts(pair: Pair) -> None:
    ours, theirs = pair
    departures, left = Departures(), threading.Semaphore(0)
    unwatch = departures.watch(ours, lambda: pytest.fail("it has ended"))
    unwatch()
    unwatch()
    departures.watch(ours, left.release)
    theirs.close()
    assert left.acquire(timeout=PATIENCE_S)
    _flush(departures)
    assert not left.acquire(blocking=False)


def test_data_is_not_read_and_is_not_a_departure(pair: Pair) -> None:
    ours, theirs = pair
    departures, left = Departures(), threading.Event()
    departures.watch(ours, left.set)
    theirs.sendall(b"next request")
    _flush(departures)
    assert not left.is_set()
    assert ours.recv(100) == b"next request"


def test_without_a_socket_there_is_nothing_to_watch() -> None:
    Departures().watch(None, lambda: pytest.fail("no client can leave"))()


def test_a_socket_that_is_closed_while_others_leave_ends_no_watch() -> None:
    """Two leave at once, and the handler of one is done, its socket closed, before its turn."""
    departures = Departures()
    (busy, busy_theirs), first, second = (socket.socketpair() for _ in range(3))
    held, reached = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        held.wait(PATIENCE_S)

    departures.watch(busy, hold)
    busy_theirs.close()
    assert reached.wait(PATIENCE_S)  # the thread finds both of the others when it continues
    left = threading.Semaphore(0)

    def leave(other: socket.socket, unwatch: list[Callable[[], None]]) -> None:
        unwatch[0]()
        other.close()
        left.release()

    unwatch_first: list[Callable[[], None]] = []
    unwatch_second: list[Callable[[], None]] = []
    unwatch_first.append(departures.watch(first[0], lambda: leave(second[0], unwatch_second)))
    unwatch_second.append(departures.watch(second[0], lambda: leave(first[0], unwatch_first)))
    first[1].close()
    second[1].close()
    held.set()
    assert left.acquire(timeout=PATIENCE_S)
    _flush(departures)
    assert not left.acquire(blocking=False)
    assert departures.alive
    for ours in (busy, first[0], second[0]):
        ours.close()


def test_a_request_that_cannot_be_cancelled_ends_no_watch(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = pair
    departures = Departures()

    def fail() -> None:
        raise ZeroDivisionError("a fault")

    departures.watch(ours, fail)
    theirs.close()
    _flush(departures)
    assert "a fault" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_has_ended_shows_in_health(pair: Pair) -> None:
    ours, theirs = pair
    with serving(Config(mode="dynamic")) as client:
        departures: Departures = client.application.extensions["departures"]
        departures.watch(ours, sys.exit)
        theirs.close()
        while departures.alive:
            pass
        answer = client.get("/health")
        assert answer.status_code == 503
        assert "disconnected clients" in answer.get_json()["error"]


def _flush(departures: Departures) -> None:
    """Returns when a departure after all others has been reported."""
    ours, theirs = socket.socketpair()
    left = threading.Event()
    departures.watch(ours, left.set)
    theirs.close()
    assert left.wait(PATIENCE_S)
    ours.close()


LONG = SHORT + 1


class Hours:
    """A clock that stands still, except where the test moves it or sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_turn_there_is_none_for_twice_as_long(fails: bool) -> None:
    clock = Hours()
    turn = Turns(clock, clock.sleep).of
    with contextlib.suppress(KeyError), turn(LONG):
        clock.now_s += 0.5
        if fails:
            raise KeyError
    with turn(SHORT):
        pass
    assert clock.slept_s == [0.0]
    with turn(LONG):
        assert clock.slept_s[1] == pytest.approx(1.0 + LONG / PER_S)


def test_a_long_text_that_waits_for_long_is_refused_and_a_short_one_never_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "MOST_WAIT_S", 0.0)
    turn = Turns().of
    with turn(LONG):
        with turn(SHORT):
            pass
        with pytest.raises(ApiError, match="other long texts") as refused, turn(LONG):
            pass
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    with turn(LONG):
        pass
