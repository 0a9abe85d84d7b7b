"""The watch over sockets, on socket pairs."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable

import pytest

from api.http.departed import Departures
from serving.config import Config
from tests.api.conftest import Pair, serving

PATIENCE_S = 60.0


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
