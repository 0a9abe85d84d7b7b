"""The worker's events: one round of them may end a connection that has a further event."""

from __future__ import annotations

import selectors
import socket

from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn  # type: ignore[import-untyped]

from api.http.worker.gathering import GatheringWorker


def test_an_event_of_a_connection_that_was_dropped_in_its_round_does_nothing() -> None:
    cfg = Config()
    worker = GatheringWorker(0, 0, [], None, 0, cfg, Logger(cfg))
    worker.tmp.close()
    worker.client_timeout_s, worker.most_body_bytes, worker.keys = 60.0, 100, ()
    ours, theirs = socket.socketpair()
    with theirs, selectors.DefaultSelector() as worker.poller:
        conn = TConn(cfg, ours, "", "")
        worker.nr_conns = 1
        worker.enqueue_req(conn)
        theirs.sendall(b"GET ")
        [(key, _events)] = worker.poller.select(60)
        worker._drop_oldest()
        key.data(key.fileobj)
        assert worker.nr_conns == 0
        assert ours.fileno() == -1
