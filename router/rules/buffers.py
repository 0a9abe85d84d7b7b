"""The bytes of bodies that the router buffers, over all requests. Pure."""

from typing import Protocol


class Buffering(Protocol):
    """What keeps bytes in memory, with their number."""

    buffered_bytes: int


class BufferLimit:
    """Limits the bytes of all bodies together, so that many large ones cannot fill the memory."""

    __slots__ = ("_limit", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.total = 0

    def fits(self, more: int) -> bool:
        return self.total + more <= self._limit

    def take(self, by: Buffering, more: int) -> bool:
        """Counts bytes as those of `by`. Returns False and counts nothing if they do not fit."""
        if not self.fits(more):
            return False
        self.total += more
        by.buffered_bytes += more
        return True

    def release_all(self, by: Buffering) -> None:
        """Frees everything that `by` took."""
        self.total -= by.buffered_bytes
        by.buffered_bytes = 0
