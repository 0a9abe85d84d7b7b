"""`--record FILE`: the history of a server as JSON lines, written by a separate thread.

The thread reads the history like any other reader, so the engine never waits for a disk. If the
disk is too slow, lines are missing, and a line says how many. docs/metrics.md describes the format.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from records import Arrived, Ended, Event, History, Iterated

log = logging.getLogger(__name__)

VERSION = 1
WRITE_EVERY_S = 0.25  # a history of short iterations is overwritten within seconds


class Recording:
    """Writes events from now on to `path`, which is overwritten; `head` is the first line. If the
    disk fails, only the recording ends, with a warning."""

    def __init__(self, path: Path, history: History, head: Mapping[str, Any]) -> None:
        self.path = path
        self._history = history
        self._head = head
        self._next = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Returns when all events so far are written."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with self.path.open("w") as file:
                self._write(file, [{"type": "head", "version": VERSION, **self._head}])
                stopping = False
                while not stopping:
                    stopping = self._stopping.wait(WRITE_EVERY_S)
                    self._write(file, self._news())
        except OSError as error:
            log.warning("--record %s ends here: %s", self.path, error.strerror)

    def _news(self) -> Iterable[Mapping[str, Any]]:
        news = self._history.since(self._next)
        self._next = news.next
        if news.missed:
            yield {"type": "missed", "events": news.missed}
        yield from map(as_json, news.events)

    @staticmethod
    def _write(file: TextIO, lines: Iterable[Mapping[str, Any]]) -> None:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        file.flush()


def as_json(event: Event) -> dict[str, Any]:
    """A line of the file. Times in seconds, on the clock of the first line's `clock_s`."""
    match event:
        case Arrived():
            return {
                "type": "arrived",
                "request": event.request,
                "at_s": event.at_s,
                "prompt_tokens": event.prompt_tokens,
                "max_tokens": event.max_tokens,
                "class": event.service_class,
            }
        case Iterated(sums=sums):
            return {
                "type": "iteration",
                "start_s": sums.start_s,
                "duration_s": sums.duration_s,
                "rows": list(event.rows),
                "generated": sums.generated,
                "padding": event.padding,
                "waiting": event.waiting,
                "used": event.used,
                "cached": event.cached,
                "free": event.free,
                "preempted": event.preempted,
            }
        case Ended(record=record):
            return {
                "type": "ended",
                "request": event.request,
                "end": record.end,
                "arrival_s": record.arrival_s,
                "admitted_s": record.admitted_s,
                "first_token_s": record.first_token_s,
                "last_token_s": record.last_token_s,
                "end_s": record.end_s,
                "generated": record.generated,
                "preemptions": record.preemptions,
            }
