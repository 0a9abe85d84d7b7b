"""The worker's events: one round of them may end a connection that has a further event, and a late
refusal holds no thread."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn  # type: ignore[import-untyped]

from api.http.worker.gathering import GatheringWorker
from tests.api.http.conftest import Pair
from web.pace import AT_ONCE

HEAD, BODY = b"HTTP/1.1 404 NOT FOUND\r\n\r\n", b"there is nothing here"
FAR_S = 1e9


@pytest.fixture
def worker() -> Iterator[GatheringWorker]:
    cfg = Config()
    worker = GatheringWorker(0, 0, [], None, 0, cfg, Logger(cfg))
    worker.tmp.close()
    worker.client_timeout_s, worker.most_body_bytes, worker.keys = 60.0, 100, ()
    with selectors.DefaultSelector() as worker.poller:
        yield worker


def connected(worker: GatheringWorker, ours: socket.socket) -> TConn:
    conn = TConn(worker.cfg, ours, ("10.0.0.1", 1), "")
    worker.nr_conns = 1
    worker.enqueue_req(conn)
    return conn


def answered(worker: GatheringWorker, ours: socket.socket, *, bodiless: bool = False) -> TConn:
    """A connection whose handler has returned, with a refusal that is late."""
    conn = connected(worker, ours)
    worker._end_wait(conn)
    for _ in range(AT_ONCE):
        worker.pace.late_s("10.0.0.1")
    conn.outgoing.begin(bodiless=bodiless)
    conn.outgoing.sendall(HEAD)
    if not bodiless:
        conn.outgoing.sendall(BODY)
    worker._finish(conn, False)
    return conn


def one_event(worker: GatheringWorker) -> None:
    [(key, _events)] = worker.poller.select(60)
    key.data(key.fileobj)


def test_an_event_of_a_connection_that_was_dropped_in_its_round_does_nothing(
    worker: GatheringWorker, pair: Pair
) -> None:
    connected(worker, pair[0])
    pair[1].sendall(b"GET ")
    [(key, _events)] = worker.poller.select(60)
    worker._drop_oldest()
    key.data(key.fileobj)
    assert worker.nr_conns == 0
    assert pair[0].fileno() == -1


@pytest.mark.parametrize(("bodiless", "first", "rest"), [(False, HEAD, BODY), (True, b"", HEAD)])
def test_a_late_refusal_is_sent_when_its_time_has_come(
    bodiless: bool,
    first: bytes,
    rest: bytes,
    worker: GatheringWorker,
    pair: Pair,
) -> None:
    conn = answered(worker, pair[0], bodiless=bodiless)
    pair[1].sendall(b"the rest of a body")  # is not read meanwhile
    one_event(worker)
    assert not worker.poller.select(0)
    worker.murder_pending()
    pair[1].setblocking(False)
    assert (pair[1].recv(100) if first else b"") == first
    with pytest.raises(BlockingIOError):
        pair[1].recv(100)
    conn.incoming.deadline_s, worker._scanned_s = 0.0, 0.0
    worker.murder_pending()
    one_event(worker)
    assert pair[1].recv(100) == rest
    assert pair[1].recv(100) == b""


def test_a_client_that_leaves_before_its_late_refusal_is_forgotten(
    worker: GatheringWorker, pair: Pair
) -> None:
    answered(worker, pair[0])
    pair[1].close()
    one_event(worker)
    assert (worker.nr_conns, worker._waiting) == (0, {})
    assert pair[0].fileno() == -1


def test_the_servers_end_does_not_wait_for_late_refusals(
    worker: GatheringWorker, pair: Pair
) -> None:
    conn = answered(worker, pair[0])
    conn.incoming.deadline_s = FAR_S
    worker._cap_keepalive(1.0)
    assert conn.incoming.deadline_s == 1.0
