"""Responses of `/v1/responses`, and the conversations that they form.

A response refers to the one that it continues. Those of a conversation are kept as long as its
newest. A response that is generated in the background is stored before it has ended; one whose time
has run out without an end was lost with its server.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import CTE, delete, func, select, update
from sqlalchemy.orm import Session

from deferred.entities import StoredResponse
from deferred.errors import ConversationTooLongError, NotFoundError
from deferred.store.database import Database, changed, find_owned
from deferred.store.files import require_quota

RESPONSES_A_COMMIT = 500  # removed


class Responses:
    """Each response belongs to an owner, as files do, and only the owner sees it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def require_room(self, owner: str, size_bytes: int, quota_bytes: int | None) -> None:
        """Raises QuotaExceededError if the owner has no room for so much more. It is asked before
        a response is generated: one that was is stored, whatever its length."""
        with self._database.read() as session:
            require_quota(session, owner, quota_bytes, size_bytes)

    def create(self, response: StoredResponse) -> None:
        """Keeps those before it for as long."""
        with self._database.write(durable=False) as session:
            if response.previous is not None:
                session.execute(
                    update(StoredResponse)
                    .where(
                        StoredResponse.number.in_(select(_chain(response.previous).c.number)),
                        StoredResponse.expires_at < response.expires_at,
                    )
                    .values(expires_at=response.expires_at)
                )
            response.size_bytes = len(response.input) + len(response.body)
            session.add(response)

    def end(self, response_id: str, body: bytes) -> bool:
        """Gives a response that is being generated its final body. False if it has ended already,
        or is gone."""
        size_bytes = func.length(StoredResponse.input) + len(body)
        ended = (
            update(StoredResponse)
            .where(StoredResponse.id == response_id, StoredResponse.lost_at.is_not(None))
            .values(lost_at=None, body=body, size_bytes=size_bytes)
        )
        with self._database.write(durable=False) as session:
            return changed(session, ended) == 1

    def get(self, owner: str, response_id: str, now_s: float) -> StoredResponse:
        """Raises NotFoundError."""
        with self._database.read() as session:
            return _find(session, owner, response_id, now_s)

    def conversation(
        self, owner: str, response_id: str, now_s: float, *, most_bytes: int
    ) -> Sequence[StoredResponse]:
        """The response and those before it, the oldest first. Raises NotFoundError, also if one of
        them is gone, and ConversationTooLongError."""
        with self._database.read() as session:
            chain = _chain(_find(session, owner, response_id, now_s).number)
            size_bytes = session.execute(select(func.sum(chain.c.size_bytes))).scalar_one()
            if size_bytes > most_bytes:
                raise ConversationTooLongError(
                    f"the conversation has {size_bytes} bytes; allowed: {most_bytes}"
                )
            found = session.scalars(
                select(StoredResponse)
                .where(StoredResponse.number.in_(select(chain.c.number)))
                .order_by(StoredResponse.number)
            ).all()
        if not found or found[0].previous is not None:
            raise NotFoundError(
                f"an earlier response of the conversation of {response_id} was deleted"
            )
        return found

    def delete(self, owner: str, response_id: str, now_s: float) -> None:
        """Raises NotFoundError."""
        with self._database.write(durable=True) as session:
            number = _find(session, owner, response_id, now_s).number
            session.execute(delete(StoredResponse).where(StoredResponse.number == number))

    def sweep(self, now_s: float) -> bool:
        """Removes some expired responses; False if there is none."""
        expired = (
            select(StoredResponse.number)
            .where(StoredResponse.expires_at <= now_s)
            .order_by(StoredResponse.expires_at)
            .limit(RESPONSES_A_COMMIT)
        )
        with self._database.write(durable=False) as session:
            removed = delete(StoredResponse).where(
                StoredResponse.number.in_(expired.scalar_subquery())
            )
            return changed(session, removed) > 0


def _find(session: Session, owner: str, response_id: str, now_s: float) -> StoredResponse:
    alive = StoredResponse.expires_at > now_s
    return find_owned(session, StoredResponse, owner, response_id, alive)


def _chain(newest: int) -> CTE:
    """The numbers and sizes of the response with this number and of all before it."""
    columns = select(StoredResponse.number, StoredResponse.previous, StoredResponse.size_bytes)
    chain = columns.where(StoredResponse.number == newest).cte("chain", recursive=True)
    return chain.union_all(columns.where(StoredResponse.number == chain.c.previous))
