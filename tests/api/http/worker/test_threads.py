"""The threads of requests."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from api.http.worker.threads import Threads

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
