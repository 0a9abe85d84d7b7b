"""A body that arrives, of a request or of an answer, for the one task that takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.http.server import Connection

# More bytes than these are not taken from a client's socket before somebody takes them.
MOST_HELD_BYTES = 256 * 1024

Take = Callable[[bytes], object]


@dataclass(slots=True, eq=False)
class Body:
    """`client`: who sends it; None: an upstream. `is_blocked`: what takes it cannot take more for
    now. `is_whole`: everything has arrived."""

    client: Connection | None = None
    _held: list[bytes] = field(default_factory=list)
    _held_bytes: int = 0
    _take: Take | None = None
    _waiter: asyncio.Future[None] | None = None
    _error: Exception | None = None
    is_blocked: bool = False
    is_whole: bool = False

    @property
    def is_full(self) -> bool:
        return self.is_blocked or self._held_bytes > MOST_HELD_BYTES

    def block(self, is_blocked: bool) -> None:
        self.is_blocked = is_blocked
        if self.client is not None:
            self.client.read_or_pause()

    def feed(self, data: bytes) -> None:
        if self._take is None:
            self._held.append(data)
            self._held_bytes += len(data)
            return
        try:
            self._take(data)
        except Exception as error:
            self.fail(error)

    def end(self) -> None:
        self.is_whole = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """It breaks off here, unless it has ended: what has arrived can be taken."""
        if self.is_whole or self._error is not None:
            return
        self._error = error
        if self._waiter is not None:
            self._take = _nobody
            if not self._waiter.done():
                self._waiter.set_exception(error)

    async def flow(self, take: Take) -> None:
        """Calls `take` with each piece that has arrived or arrives. Returns at the end. Raises why
        it broke off, and what `take` raises."""
        held, self._held, self._held_bytes = self._held, [], 0
        for data in held:
            take(data)
        if self.is_whole:
            return
        if self._error is not None:
            raise self._error
        self._take = take
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if self.client is not None:
                self.client.read_or_pause()  # what was held is taken
                self.client.body_waits(True)
            await self._waiter
        finally:
            self._take = _nobody
            if self.client is not None:
                self.client.body_waits(False)

    async def whole(self, most: int) -> bytes:
        """Raises ValueError if it is longer than `most` bytes, and why it broke off."""
        found = bytearray()

        def take(data: bytes) -> None:
            found.extend(data)
            if len(found) > most:
                raise ValueError(f"The body is longer than {most} bytes.")

        await self.flow(take)
        return bytes(found)


def _nobody(data: bytes) -> None:
    """Takes what nobody wants any more."""
