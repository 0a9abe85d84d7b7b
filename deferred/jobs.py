"""The deferred jobs of one server: their store, and the two threads that work on it.

An existing store is opened at start, a new one at its first use.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deferred.entities import BatchProgress
from deferred.errors import StoreError, StoreInUseError, StoreUnavailableError
from deferred.loop import JobOptions, Loop
from deferred.maintenance import Maintenance
from deferred.store import JobStore, open_store
from deferred.worker import Begin, JobWorker

log = logging.getLogger(__name__)

STORE_FILE = "jobs.db"  # the name that `open_store` gives a database in a folder
RETRY_S = 2.0  # between attempts to open a store that is in use or unavailable
REMEMBERED_S = 1.0  # callers get the last failure for so long; they would queue for the next one


class Jobs:
    """All methods may be called from any thread."""

    def __init__(self, where: str | Path, begin: Begin, options: JobOptions) -> None:
        """`where`: as in `open_store`."""
        self._where = where
        self._begin = begin
        self._options = options
        self._lock = threading.Lock()
        self._store: JobStore | None = None
        self._failure: tuple[float, StoreError] | None = None
        self._started = False
        self._stopping = threading.Event()
        self._maintenance: Maintenance | None = None
        self._loops: list[Loop] = []

    @property
    def store(self) -> JobStore:
        """The store, opened at its first use. Raises StoreError."""
        with self._lock:
            if self._store is None:
                self._open()
            assert self._store is not None
            return self._store

    def start(self) -> None:
        """Allows lines to be executed: starts the threads now, or when the store is opened."""
        with self._lock:
            self._started = True
            if self._store is not None:
                self._launch()
            elif self._may_exist():
                threading.Thread(target=self._resume, name="jobs", daemon=True).start()

    def _may_exist(self) -> bool:
        try:
            return isinstance(self._where, str) or (self._where / STORE_FILE).exists()
        except OSError:  # opening it will report this error
            return True

    def wake(self) -> None:
        """Call it after a batch was created or cancelled."""
        for loop in self._loops:
            loop.wake()

    def stop(self, timeout_s: float) -> None:
        """Ends both threads and returns unfinished lines to the store."""
        self._stopping.set()
        end_s = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):  # the database is still being opened
            return  # no thread has started, and none will
        try:
            for loop in self._loops:
                loop.stop()
        finally:
            self._lock.release()
        for loop in self._loops:
            loop.thread.join(max(0.0, end_s - time.monotonic()))

    def close(self) -> None:
        """Call it after `stop`, when the store is no longer used."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    @property
    def progress(self) -> BatchProgress | None:
        """The latest figures; None without a store."""
        return None if self._maintenance is None else self._maintenance.progress

    def describe(self) -> dict[str, Any]:
        """The figures of `/stats`, without a query. `store`: unused, open or unavailable. Clients
        read this, so only the log says why."""
        progress = self.progress
        if progress is None:
            unused = self._maintenance is None and self._failure is None
            return {"store": "unused" if unused else "unavailable"}
        told = asdict(progress)
        return {"store": "open", **{name.replace("_", "-"): told[name] for name in told}}

    def _open(self) -> None:
        if self._stopping.is_set():
            raise StoreUnavailableError("the server is shutting down")
        if self._failure is not None and time.monotonic() < self._failure[0] + REMEMBERED_S:
            raise self._failure[1]
        try:
            self._store = self._opened()
        except StoreError as error:
            if self._failure is None or str(self._failure[1]) != str(error):
                # a second server on a folder is a choice, and the folder may become free
                level = logging.WARNING if isinstance(error, StoreInUseError) else logging.ERROR
                log.log(level, "the Batch API is off: %s", error)
            self._failure = time.monotonic(), error
            raise
        if self._failure is not None:
            log.info("the Batch API is on")
        self._failure = None
        if self._started and not self._stopping.is_set():
            self._launch()

    def _opened(self) -> JobStore:
        try:
            return open_store(self._where)
        except StoreError:
            raise
        except Exception as error:  # from a library: an invalid URL, a driver's error
            raise StoreUnavailableError(f"the job store cannot be opened: {error}") from error

    def _resume(self) -> None:
        """Opens the store, which may hold jobs of an earlier process."""
        while not self._stopping.is_set():
            try:
                _ = self.store
                return
            except StoreError:
                self._stopping.wait(RETRY_S)

    def _launch(self) -> None:
        assert self._store is not None
        self._maintenance = Maintenance(self._store, self._options, lambda: worker.wake())
        worker = JobWorker(self._store, self._options, self._begin, self._maintenance.wake)
        self._loops = [worker, self._maintenance]
        for loop in self._loops:
            loop.thread.start()
