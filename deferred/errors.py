"""The errors that the store raises."""

from __future__ import annotations


class StoreError(Exception):
    """Base class of the errors below."""


class StoreUnavailableError(StoreError):
    """The database is locked, full or gone, or did not answer in time. The call had no visible
    effect and may be repeated."""


class StoreInUseError(StoreError):
    """Another process holds this SQLite database."""


class UnknownSchemaError(StoreError):
    """The database was made by a later version of this program, or before the first release."""


class NotFoundError(StoreError):
    """The file, batch or response does not exist, was deleted, has expired, or belongs to another
    owner."""


class QuotaExceededError(StoreError):
    """The owner would store more than is allowed; nothing of the call is kept."""


class ConversationTooLongError(StoreError):
    """The responses of a conversation are too large to be read together."""


class FileTooLargeError(StoreError):
    """An upload exceeded its limit; nothing of it is kept."""


class StatusConflictError(StoreError):
    """The batch's status does not allow this."""


class IdempotencyMismatchError(StoreError):
    """The idempotency key was used before, for a different batch."""


class LeaseLostError(StoreError):
    """The worker no longer holds this batch: it was cancelled, it expired, or another worker took
    over. Stop working on it."""
