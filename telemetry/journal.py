"""`--record FILE`: JSON lines written by a separate thread, so that nothing waits for a disk.

The first line is the head. It names the process that wrote the file, and one moment on two clocks:
`clock_s`, the clock of all other lines, and `unix_s`. The difference puts the files of several
processes and machines on one time axis (`python -m watch.trace`). The clock is the monotonic one,
which `time.perf_counter` also reads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

log = logging.getLogger(__name__)

VERSION = 1
WRITE_EVERY_S = 0.25
MOST_LINES = 2**16  # that wait for the disk; further ones are missing

Line = Mapping[str, Any]


class Journal:
    """Overwrites `path` when it starts: start it when its process can work. If the disk fails, only
    the journal ends, with a warning."""

    def __init__(self, path: Path, process: str, facts: Line) -> None:
        self.path = path
        clock_s = time.monotonic()
        # time passes between two readings: the largest of several differences is the most accurate
        offset_s = max(time.time() - time.monotonic() for _ in range(8))
        clocks = {"clock_s": clock_s, "unix_s": clock_s + offset_s}
        self._head = {"type": "head", "version": VERSION, "process": process, **clocks, **facts}
        self._lines: deque[Line] = deque()
        self._dropped = self._reported = 0
        self._ended = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Returns when all lines so far are written."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def write(self, line: Line) -> None:
        """Returns at once. One thread may call it."""
        if len(self._lines) < MOST_LINES and not self._ended:
            self._lines.append(line)
        else:
            self._dropped += 1

    def new_lines(self) -> Iterable[Line]:
        """What was written since the last time. Called by the journal's own thread."""
        if missed := self._dropped - self._reported:
            self._reported += missed
            yield {"type": "missed", "events": missed}
        while self._lines:
            yield self._lines.popleft()

    def _run(self) -> None:
        try:
            with self.path.open("w") as file:
                _write(file, [self._head])
                stopping = False
                while not stopping:
                    stopping = self._stopping.wait(WRITE_EVERY_S)
                    _write(file, self.new_lines())
        except OSError as error:
            self._ended = True
            self._lines.clear()
            log.warning("--record %s ends here: %s", self.path, error.strerror)


def check_writable(path: str) -> None:
    """Raises OSError where nothing can be written there. An earlier file stays as it is until the
    journal starts: the start of its process may fail."""
    try:
        open(path, "a").close()
    except OSError as error:
        raise OSError(
            f"cannot write {path} ({error.strerror}); --record needs a file in a folder that exists"
        ) from error


def _write(file: TextIO, lines: Iterable[Line]) -> None:
    file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.flush()
