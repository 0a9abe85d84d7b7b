"""The worker: its events, of which one round may end a connection that has a further one; responses
to clients that read slowly, on socket pairs; the threads of requests. The intake: which requests
get a handler, in which order, and which are pending."""

from __future__ import annotations

import math
import selectors
import socket
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from gunicorn.config import Config as Settings  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from api.http.worker.gathering import GatheringWorker
from api.http.worker.incoming import BYTES_PER_S
from api.http.worker.intake import ARRIVED_S, Intake
from api.http.worker.outgoing import MOST_KEPT_BYTES, Outgoing
from api.http.worker.threads import Threads
from api.stream import event_stream
from app import create_app
from serving.config import Config
from tests.api.conftest import Pair
from tests.support.dialects import NATIVE, ask
from tests.support.hash_app import byte_tokenizer, load
from web.pace import AT_ONCE

# --- events ------------------------------------------------------------------------------
HEAD, BODY = b"HTTP/1.1 404 NOT FOUND\r\n\r\n", b"there is nothing here"
FAR_S = 1e9


@pytest.fixture
def worker() -> Iterator[GatheringWorker]:
    cfg = Settings()
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


# --- slow readers ------------------------------------------------------------------------
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


# --- threads -----------------------------------------------------------------------------
PATIENCE_S = 60.0


def test_work_waits_while_all_threads_are_busy_and_is_all_done() -> None:
    threads, meeting = Threads(2), threading.Barrier(2)
    ran: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def work(number: int) -> None:
        meeting.wait(PATIENCE_S)  # of two threads, each time
        ran.put((number, threading.get_ident()))

    for number in range(10):
        threads.submit(lambda number=number: work(number))  # type: ignore[misc]
    done = [ran.get(timeout=PATIENCE_S) for _ in range(10)]
    assert sorted(number for number, _ in done) == list(range(10))
    assert len({thread for _, thread in done}) == 2
    threads.shutdown(wait=False)


def test_a_thread_serves_on_after_work_that_failed() -> None:
    threads = Threads(1)
    ran: SimpleQueue[int] = SimpleQueue()

    def fail() -> None:
        ran.put(threading.get_ident())
        raise SystemExit

    for _ in range(2):
        threads.submit(fail)
    assert ran.get(timeout=PATIENCE_S) == ran.get(timeout=PATIENCE_S)
    threads.shutdown(wait=False)


def test_work_for_which_no_thread_can_start_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, gate = Threads(3, started=1), threading.Event()
    ran: SimpleQueue[str] = SimpleQueue()
    threads.submit(lambda: ran.put(str(gate.wait(PATIENCE_S))))  # by the one that was started
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(lambda: ran.put("refused"))
    threads.submit(lambda: ran.put("next"))
    assert ran.get(timeout=PATIENCE_S) == "next"
    gate.set()
    assert ran.get(timeout=PATIENCE_S) == "True"
    assert ran.empty()
    threads.shutdown(wait=False)


CONTEXT = 10


@given(st.lists(st.sampled_from(["arrive", "finish", "leave"]), max_size=60), st.integers(1, 4))
def test_requests_are_handled_in_order_of_arrival_and_never_more_than_may_be(
    events: list[str], most: int
) -> None:
    intake = Intake[int](lambda: most, clock=lambda: 0.0)
    handled, gone = list[int](), set[int]()
    arrived = 0
    for event in events:
        if event == "arrive":
            if intake.is_full():
                intake.add(arrived)
            else:
                intake.handle()
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
    now_s = 0.0
    intake = Intake[str](lambda: 0, patience_s=5.0, clock=lambda: now_s)
    intake.add("first")
    now_s = 3.0
    intake.add("second")
    assert intake.take() is None
    now_s = 5.0
    assert intake.take() == ("first", 0.0)
    assert intake.take() is None
    assert intake.handled == 1


def test_pending_requests_wait_for_a_lost_model_and_arrivals_are_refused() -> None:
    app = create_app(Config(mode="dynamic"), load, byte_tokenizer())
    manager, intake = app.extensions["engine"].manager, app.extensions["intake"]
    assert intake.most() == math.inf
    manager.model = SimpleNamespace(lost="gone", context=CONTEXT)
    assert intake.most() < math.inf
    manager.queue.open(CONTEXT, CONTEXT)
    too_long = partial(ask, app.test_client(), NATIVE, "x" * CONTEXT)
    assert too_long().status_code == 503
    token = ARRIVED_S.set(0.0)
    try:
        assert too_long().status_code == 400
        manager.queue.drain()
        assert too_long().status_code == 503
    finally:
        ARRIVED_S.reset(token)
    assert intake.most() == math.inf


class Silent(threading.Event):
    """An update that never comes; it keeps how long it was awaited."""

    timeout: float | None

    def wait(self, timeout: float | None = None) -> bool:
        self.timeout = timeout
        return False


@pytest.mark.parametrize(("now_s", "left_s"), [(0.0, 15.0), (10.0, 5.0), (20.0, 0.0)])
def test_the_time_in_the_intake_counts_towards_a_streams_silence(
    now_s: float, left_s: float
) -> None:
    updated = Silent()
    service: Any = SimpleNamespace(
        config=Config(mode="dynamic", stream_heartbeat=15.0),
        clock=lambda: now_s,
        watch=lambda *_: lambda: None,
    )
    pending: Any = SimpleNamespace(updated=updated, arrival_s=0.0)
    with Flask("").test_request_context():
        event_stream(service, [pending], [])
    assert updated.timeout == left_s
