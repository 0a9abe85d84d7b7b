"""Threads for requests: started when they are needed, and kept.

Unlike `concurrent.futures`, a start that the system refuses leaves nothing behind: the work is not
queued, so its request can be refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

Work = Callable[[], None]


class Threads:
    """`submit` may be called from any thread."""

    def __init__(self, most: int, *, started: int = 0) -> None:
        """Up to `most` threads, of which `started` start now. Raises RuntimeError."""
        self._most = most
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._free = 0  # threads without work; negative: work that waits for a thread
        for _ in range(started):
            self._start()

    def submit(self, work: Work) -> None:
        """Work waits if all threads are busy. Raises RuntimeError, and does not keep the work, if
        the system refuses a further thread."""
        with self._lock:
            if self._free <= 0 and self._started < self._most:
                self._start()
            self._free -= 1
        self._work.put(work)

    def shutdown(self, wait: bool) -> None:
        """Ends the threads after their work; gunicorn does not wait for it."""
        for _ in range(self._started):
            self._work.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._run, name="handler", daemon=True).start()
        self._started += 1
        self._free += 1

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            try:
                work()
            except BaseException:  # such as SystemExit: the thread serves others
                log.exception("a handler's thread failed")
            del work  # an idle thread holds no request
            with self._lock:
                self._free += 1
