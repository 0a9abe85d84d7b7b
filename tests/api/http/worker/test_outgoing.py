"""Responses to clients that read slowly, on socket pairs."""

from __future__ import annotations

import math

import pytest

from api.http.worker.incoming import BYTES_PER_S
from api.http.worker.outgoing import MOST_KEPT_BYTES, Outgoing
from tests.api.http.conftest import Pair

LONG_S = 3600.0
FULL = b"x" * 8_000_000  # more than a socket holds


def test_a_short_rest_is_kept_without_waiting_and_arrives_in_order(pair: Pair) -> None:
    ours, theirs = pair
    outgoing = Outgoing(ours, LONG_S)
    outgoing.sendall(b"head")
    assert outgoing.whole
    sent = b"head"
    while outgoing.whole:
        outgoing.sendall(b"y" * 65536)
        sent += b"y" * 65536
    outgoing.sendall(b"the end")
    received = b""
    while len(received) < len(sent) + 7:
        received += theirs.recv(1 << 20)
        outgoing.flush()
    assert received == sent + b"the end"
    assert outgoing.whole


def test_a_client_that_reads_nothing_of_a_long_response_is_given_up(pair: Pair) -> None:
    outgoing = Outgoing(pair[0], 0.0)
    outgoing.sendall(b"x")  # accepted at once: no thread waits
    with pytest.raises(TimeoutError):
        outgoing.sendall(FULL)


def test_a_client_that_falls_behind_gets_time_only_for_what_it_reads(pair: Pair) -> None:
    ours, theirs = pair
    outgoing = Outgoing(ours, LONG_S)
    assert outgoing.deadline_s == math.inf
    outgoing.post(FULL)
    first_s, kept = outgoing.deadline_s, len(outgoing._rest)
    assert kept > MOST_KEPT_BYTES
    outgoing.flush()
    assert outgoing.deadline_s == first_s  # nothing was read
    theirs.recv(1 << 16)
    outgoing.flush()
    read = kept - len(outgoing._rest)
    assert outgoing.deadline_s == pytest.approx(first_s + read / BYTES_PER_S)
    outgoing.deadline_s = 0.0
    with pytest.raises(TimeoutError):
        outgoing.drain()
