"""The watch over sockets, on socket pairs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from api.http.departed import Departures

PATIENCE_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_closed_connection_is_told_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    left = threading.Semaphore(0)
    Departures().watch(ours, left.release)
    theirs.close()
    assert left.acquire(timeout=PATIENCE_S)
    assert not left.acquire(blocking=False)


def test_data_is_left_alone_and_is_no_departure(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    departures, left = Departures(), threading.Event()
    departures.watch(ours, left.set)
    theirs.sendall(b"next request")
    _flush(departures)
    assert not left.is_set()
    assert ours.recv(100) == b"next request"


def test_after_the_watch_has_ended_nothing_is_told(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    departures, left = Departures(), threading.Event()
    unwatch = departures.watch(ours, left.set)
    unwatch()
    unwatch()
    theirs.close()
    _flush(departures)
    assert not left.is_set()


def test_a_connection_can_be_watched_again(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    departures, left = Departures(), threading.Event()
    departures.watch(ours, lambda: None)()
    departures.watch(ours, left.set)
    theirs.close()
    assert left.wait(PATIENCE_S)


def test_without_a_socket_there_is_nothing_to_watch() -> None:
    Departures().watch(None, lambda: pytest.fail("nobody can leave"))()


def test_many_leave_at_once_and_each_is_told() -> None:
    departures = Departures()
    pairs = [socket.socketpair() for _ in range(50)]
    events = [threading.Event() for _ in pairs]
    for (ours, _), event in zip(pairs, events, strict=True):
        departures.watch(ours, event.set)
    for _, theirs in pairs[::2]:
        theirs.close()
    for event in events[::2]:
        assert event.wait(PATIENCE_S)
    assert not any(event.is_set() for event in events[1::2])
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def _flush(departures: Departures) -> None:
    """Returns when a departure that comes after everything else has been told."""
    ours, theirs = socket.socketpair()
    left = threading.Event()
    departures.watch(ours, left.set)
    theirs.close()
    assert left.wait(PATIENCE_S)
    ours.close()
