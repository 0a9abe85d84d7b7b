"""Items of the store, the lines of batches: executed at least once, recorded exactly once.

A worker claims pending items under a lease, keeps the lease by heartbeats, and records results. A
result counts only while its item is still running under that very claim; one that comes later is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deferred.records import Duplicate, Item, NewItem, Result, Ticket

LEASE_S = 30.0  # a worker that was silent for so long is taken for dead
HEARTBEAT_S = 10.0  # how often a worker is to call `heartbeat`


class Items:
    def add(self, batch_id: str, worker: str, items: Iterable[NewItem]) -> list[Duplicate]:
        """Adds lines of a batch that `worker` validates, as a stream, in commits of some hundred.
        May be called several times, with rising lines. Lines whose custom_id the batch has already
        are left out and returned.

        Raises LeaseLostError.
        """
        raise NotImplementedError

    def claim(self, worker: str, model: str, n: int, now_s: float) -> list[Item]:
        """Up to `n` pending items of batches in progress, leased to `worker` until now + LEASE_S:
        those of the earliest deadline first, in the order of lines."""
        raise NotImplementedError

    def heartbeat(self, worker: str, now_s: float) -> frozenset[Ticket]:
        """Extends the worker's leases, on items and on batches. Returns the tickets it still holds;
        executing any other is wasted work (its batch expired, or its lease was lost)."""
        raise NotImplementedError

    def record(self, worker: str, results: Sequence[Result]) -> int:
        """Records results in one commit and returns how many counted. Collect results for some
        50 ms or up to 256 before a call: commits cost more than rows."""
        raise NotImplementedError

    def release(self, worker: str) -> int:
        """Gives back all that `worker` holds: at its orderly end. Returns how many items."""
        raise NotImplementedError

    def recover(self, now_s: float) -> int:
        """Makes the items of workers that fell silent pending again (of a batch that is being
        cancelled: cancelled). Returns how many. `open_store` does so for all leases on SQLite,
        whose earlier process is certainly gone."""
        raise NotImplementedError
