"""The thread that writes all streams and the watch over sockets, on socket pairs; turns of long
texts, between which others have the processor."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from api.http import turns
from api.http.departed import Departures
from api.http.errors import ApiError
from api.http.turns import PER_S, SHORT, Turns
from api.http.worker.outgoing import Outgoing
from api.http.writer import Writer
from api.stream import text_event
from tests.api.conftest import Pair
from tests.support.process import PATIENCE_S

MORE_THAN_A_SOCKET_HOLDS = b"x" * 4_000_000


def test_an_event_of_a_text_is_what_json_writes() -> None:
    def made(text: str) -> dict[str, object]:
        return {"id": '"', "choices": [{"index": 0, "text": text, "logprobs": None}]}

    told = '"\\/</\x00\x1f\n\x7f\x80\u2028\ufeff\ud800 \udfff\ud800\U0001f600\ufdd0\uffff'
    written = json.dumps(made(told), separators=(",", ":"))
    assert text_event(made)(told) == b"data: " + written.encode() + b"\n\n"


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


def test_no_departure_ends_the_watch_over_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """One cannot be cancelled; then two leave at once, and the handler of one is done, its socket
    closed, before its turn."""
    departures, held, reached = Departures(), threading.Event(), threading.Event()
    pairs = [socket.socketpair() for _ in range(3)]
    unwatch, left = dict[int, Callable[[], None]](), list[int]()

    def fail() -> None:
        reached.set()
        held.wait(PATIENCE_S)
        raise ZeroDivisionError("a fault")

    def leave(number: int) -> None:
        other = 3 - number
        unwatch[other]()
        pairs[other][0].close()
        left.append(number)

    departures.watch(pairs[0][0], fail)
    for number in (1, 2):
        unwatch[number] = departures.watch(pairs[number][0], lambda n=number: leave(n))  # type: ignore[misc]
    pairs[0][1].close()
    assert reached.wait(PATIENCE_S)
    for _, theirs in pairs[1:]:
        theirs.close()  # the thread finds both when it continues
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
    turn = Turns(lambda: now_s[0], slept_s.append).of
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
    monkeypatch.setattr(turns, "MOST_WAIT_S", 0.0)
    turn = Turns().of
    refusal = pytest.raises(ApiError, match="other long texts")
    with turn(LONG), turn(SHORT), refusal as refused, turn(LONG):
        pass
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
