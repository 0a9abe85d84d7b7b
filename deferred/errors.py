"""The store's refusals and failures, as types that its callers distinguish."""

from __future__ import annotations


class StoreError(Exception):
    """Any of those below."""


class StoreUnavailableError(StoreError):
    """The database did not answer in time, is locked, full or gone. Nothing of the call is visible;
    it may be tried again."""


class StoreInUseError(StoreError):
    """Another process holds this SQLite database."""


class UnknownSchemaError(StoreError):
    """A later version of this program made the database, or one before the first release."""


class NotFoundError(StoreError):
    """No such file or batch, or it belongs to another owner, or it is deleted or expired."""


class QuotaExceededError(StoreError):
    """The owner stores as much as is allowed; nothing of the call is kept."""


class FileTooLargeError(StoreError):
    """An upload exceeded its limit; nothing of it is kept."""


class StatusConflictError(StoreError):
    """The batch's status does not allow this."""


class IdempotencyMismatchError(StoreError):
    """The idempotency key was used before, for a different batch."""


class LeaseLostError(StoreError):
    """The batch is no longer this worker's to validate or finalise: it was cancelled, it expired,
    or another worker took over. Stop and forget it."""
