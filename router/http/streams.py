"""A body that arrives, of a request or of an answer, for the one task that reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# More bytes than these are not taken from the socket before the reader has taken those.
MOST_HELD_BYTES = 256 * 1024


class BrokenBodyError(OSError):
    """The body will not be complete."""


class Stream:
    """The bytes of a body. `changed` is called when more of it is held than MOST_HELD_BYTES, and
    when it is not any more; `waits` when the reader begins and ends to wait."""

    __slots__ = ("_changed", "_ended", "_error", "_held", "_waiter", "_waits", "held_bytes")

    def __init__(
        self, changed: Callable[[], None], waits: Callable[[bool], None] | None = None
    ) -> None:
        self._changed = changed
        self._waits = waits
        self._held: list[bytes] = []
        self.held_bytes = 0
        self._ended = False
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        return self.held_bytes > MOST_HELD_BYTES

    @property
    def is_whole(self) -> bool:
        """Whether everything has arrived."""
        return self._ended

    def feed(self, data: bytes) -> None:
        self._held.append(data)
        self.held_bytes += len(data)
        if self.is_full:
            self._changed()
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def fail(self, error: OSError) -> None:
        """It breaks off here, unless it has ended: what has arrived can be read."""
        if not self._ended and self._error is None:
            self._error = error
            self._wake()

    async def read(self) -> bytes:
        """What has arrived; empty at the end. Raises OSError if it broke off."""
        while not self._held:
            if self._ended:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        was_full = self.is_full
        self._held.clear()
        self.held_bytes = 0
        if was_full:
            self._changed()
        return data

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        if self._waits is not None:
            self._waits(True)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._waits is not None:
                self._waits(False)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
