"""Long bodies and texts take turns: one at a time is parsed, rendered or encoded, and then none for
twice as long.

Such work costs a core, and in part holds the interpreter's lock. So however many clients send long
texts at once, the thread that runs the engine keeps most of both. Short ones never wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from api.http.errors import busy

SHORT = 2**13  # characters or bytes: some 2 to 10 ms of work
PER_S = 2**23  # two million tokens: far more than a model reads
MOST_WAIT_S = 10.0


class EncodingTurns:
    """Any thread may call it."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()
        self._next_s = 0.0  # when the next turn may begin

    @contextmanager
    def of(self, length: int) -> Iterator[None]:
        """To work on so many characters or bytes. Raises ApiError after a long wait."""
        if length <= SHORT:
            yield
            return
        if not self._lock.acquire(timeout=MOST_WAIT_S):
            raise busy("other long texts are being read; try again")
        try:
            self._sleep(max(0.0, self._next_s - self._clock()))
            start_s = self._clock()
            try:
                yield
            finally:
                end_s = self._clock()
                self._next_s = end_s + 2 * (end_s - start_s) + length / PER_S
        finally:
            self._lock.release()
