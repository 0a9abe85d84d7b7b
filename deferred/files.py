"""Files of the store: written and read as streams, in rows of 1 MiB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deferred.records import File, Order, Page


class Files:
    """Every file belongs to an owner (a hash of the API key; "" without keys), and only that owner
    sees it. A file that has expired is invisible from that moment; one whose upload broke off
    never was visible."""

    def create(
        self,
        owner: str,
        purpose: str,
        filename: str,
        content: Iterable[bytes],
        now_s: float,
        *,
        max_bytes: int | None = None,
        expires_at: float | None = None,
    ) -> File:
        """Stores `content` as it comes (pieces of any size; at most 2 MiB are held in memory).

        Whatever `content` raises passes through; what was stored by then is swept later.

        Raises:
            FileTooLargeError: more than `max_bytes`.
        """
        raise NotImplementedError

    def get(self, owner: str, file_id: str, now_s: float) -> File:
        """Raises NotFoundError."""
        raise NotImplementedError

    def list(
        self,
        owner: str,
        now_s: float,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 10_000,
        order: Order = "desc",
    ) -> Page[File]:
        """In the order of creation. Raises NotFoundError where `after` is not a file of theirs."""
        raise NotImplementedError

    def delete(self, owner: str, file_id: str, now_s: float) -> None:
        """Makes the file invisible; a sweep removes its bytes. A batch that was created from it is
        not harmed: its bytes stay until the batch has been validated, which copies its lines.

        Raises NotFoundError.
        """
        raise NotImplementedError

    def content(self, owner: str, file_id: str, now_s: float) -> Iterator[bytes]:
        """The bytes in pieces of at most 1 MiB. Raises NotFoundError: at the call, or from the
        iterator when the file was deleted and swept meanwhile."""
        raise NotImplementedError
