"""The bytes of bodies that the router holds at once, over all requests. Pure."""

from typing import Protocol


class Holder(Protocol):
    """An object that holds bytes, with their number."""

    held_bytes: int


class HeldBytes:
    """A budget for bodies, so that many large ones cannot fill the memory."""

    __slots__ = ("_limit", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.total = 0

    def fits(self, more: int) -> bool:
        return self.total + more <= self._limit

    def take(self, holder: Holder, more: int) -> bool:
        """Counts bytes as the holder's. Returns False and counts nothing if they do not fit."""
        if not self.fits(more):
            return False
        self.total += more
        holder.held_bytes += more
        return True

    def give_back(self, holder: Holder) -> None:
        """The holder has released everything it held."""
        self.total -= holder.held_bytes
        holder.held_bytes = 0
