"""Batches of the store: their life from creation to a final status.

validating → failed
validating → in_progress → finalizing → completed | expired
validating | in_progress → cancelling → cancelled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from deferred.records import Batch, LineError, NewBatch, Page, Unrun


class Batches:
    # --- for the owner ---

    def create(
        self,
        owner: str,
        spec: NewBatch,
        now_s: float,
        *,
        expires_at: float,
        idempotency_key: str | None = None,
    ) -> Batch:
        """A new batch in `validating`; or, where the owner used this key for the same spec before,
        that earlier batch as it is now.

        Raises:
            NotFoundError: no such input file.
            IdempotencyMismatchError: the key was used for another spec.
        """
        raise NotImplementedError

    def get(self, owner: str, batch_id: str) -> Batch:
        """Raises NotFoundError."""
        raise NotImplementedError

    def list(self, owner: str, *, after: str | None = None, limit: int = 20) -> Page[Batch]:
        """The newest first. Raises NotFoundError where `after` is not a batch of theirs."""
        raise NotImplementedError

    def cancel(self, owner: str, batch_id: str, now_s: float) -> Batch:
        """Now `cancelling`: pending items are cancelled, running ones may finish. Again: no effect.

        Raises NotFoundError; StatusConflictError where it is finalizing or ended.
        """
        raise NotImplementedError

    # --- for the worker ---

    def claim_validation(self, worker: str, model: str, now_s: float) -> Batch | None:
        """The oldest batch in `validating` that nobody validates, leased to `worker`; what an
        earlier, interrupted validation had added is gone. Then: `input`, `items.add`, and `start`
        or `fail`. None: there is none."""
        raise NotImplementedError

    def input(self, batch: Batch) -> Iterator[bytes]:
        """The bytes of its input file in pieces of at most 1 MiB, also where the owner deleted it
        or it expired since. Raises NotFoundError where it was gone already."""
        raise NotImplementedError

    def start(self, batch_id: str, worker: str, now_s: float) -> None:
        """`validating` → `in_progress`: its items may be claimed. Raises LeaseLostError."""
        raise NotImplementedError

    def fail(self, batch_id: str, worker: str, errors: Sequence[LineError], now_s: float) -> None:
        """`validating` → `failed`. Raises LeaseLostError."""
        raise NotImplementedError

    def expire_due(self, now_s: float) -> int:
        """Ends the windows that are over: their pending and running items are expired (a result
        that comes later is dropped) and the batches can be finalised. Returns how many."""
        raise NotImplementedError

    def claim_finalisation(self, worker: str, now_s: float) -> Batch | None:
        """A batch whose items have all ended and whose files nobody writes, leased to `worker`.
        Then: `finalise`. None: there is none."""
        raise NotImplementedError

    def finalise(
        self,
        batch_id: str,
        worker: str,
        now_s: float,
        unrun_text: Callable[[str, int, str, Unrun], bytes],
    ) -> Batch:
        """Writes the output and the error file in the order of lines and gives the batch its final
        status, the files becoming visible in the same transaction; a file without a line is not
        made. Interrupted at any moment it can be repeated.

        Args:
            unrun_text: (batch id, line, custom_id, why) -> the line (JSON, no newline) of the error
                file for an item that was not executed.

        Raises LeaseLostError.
        """
        raise NotImplementedError
