"""Responses of `/v1/responses`, and the conversations that they form.

A response refers to the one that it continues. Those of a conversation are kept as long as its
newest. A response that is generated in the background is stored before it has ended; one whose time
has run out without an end was lost with its server.
"""

from __future__ import annotations

from sqlalchemy import CTE, Connection, delete, func, insert, select, update

from deferred.entities import NewResponse, StoredResponse
from deferred.errors import ConversationTooLongError, NotFoundError
from deferred.store.database import AnyRow, Database
from deferred.store.quota import require_quota
from deferred.store.schema import responses

RESPONSES_A_COMMIT = 500  # removed


class Responses:
    """Each response belongs to an owner, as files do, and only the owner sees it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def require_room(self, owner: str, size_bytes: int, quota_bytes: int | None) -> None:
        """Raises QuotaExceededError if the owner has no room for so much more. It is asked before
        a response is generated: one that was is stored, whatever its length."""
        with self._database.read() as connection:
            require_quota(connection, owner, quota_bytes, size_bytes)

    def create(self, owner: str, response: NewResponse, now_s: float) -> None:
        """Keeps those before it for as long."""
        with self._database.write(durable=False) as connection:
            if response.previous is not None:
                connection.execute(
                    update(responses)
                    .where(
                        responses.c.number.in_(select(_chain(response.previous).c.number)),
                        responses.c.expires_at < response.expires_at,
                    )
                    .values(expires_at=response.expires_at)
                )
            connection.execute(
                insert(responses).values(
                    id=response.id,
                    owner=owner,
                    previous=response.previous,
                    created_at=now_s,
                    expires_at=response.expires_at,
                    lost_at=response.lost_at,
                    size_bytes=len(response.input) + len(response.body),
                    input=response.input,
                    body=response.body,
                )
            )

    def end(self, response_id: str, body: bytes) -> bool:
        """Gives a response that is being generated its final body. False if it has ended already,
        or is gone."""
        with self._database.write(durable=False) as connection:
            changed = connection.execute(
                update(responses)
                .where(responses.c.id == response_id, responses.c.lost_at.is_not(None))
                .values(
                    lost_at=None,
                    body=body,
                    size_bytes=func.length(responses.c.input) + len(body),
                )
            )
        return changed.rowcount == 1

    def get(self, owner: str, response_id: str, now_s: float) -> StoredResponse:
        """Raises NotFoundError."""
        with self._database.read() as connection:
            return _response_of(_find(connection, owner, response_id, now_s))

    def conversation(
        self, owner: str, response_id: str, now_s: float, *, most_bytes: int
    ) -> tuple[StoredResponse, ...]:
        """The response and those before it, the oldest first. Raises NotFoundError, also if one of
        them is gone, and ConversationTooLongError."""
        with self._database.read() as connection:
            newest = _find(connection, owner, response_id, now_s)
            chain = _chain(newest.number)
            size_bytes = connection.execute(select(func.sum(chain.c.size_bytes))).scalar_one()
            if size_bytes > most_bytes:
                raise ConversationTooLongError(
                    f"the conversation has {size_bytes} bytes; allowed: {most_bytes}"
                )
            rows = connection.execute(
                select(responses)
                .where(responses.c.number.in_(select(chain.c.number)))
                .order_by(responses.c.number)
            ).all()
        if not rows or rows[0].previous is not None:
            raise NotFoundError(
                f"an earlier response of the conversation of {response_id} was deleted"
            )
        return tuple(map(_response_of, rows))

    def delete(self, owner: str, response_id: str, now_s: float) -> None:
        """Raises NotFoundError."""
        with self._database.write(durable=True) as connection:
            row = _find(connection, owner, response_id, now_s)
            connection.execute(delete(responses).where(responses.c.number == row.number))

    def sweep(self, now_s: float) -> int:
        """Removes some expired responses; returns how many."""
        expired = (
            select(responses.c.number)
            .where(responses.c.expires_at <= now_s)
            .order_by(responses.c.expires_at)
            .limit(RESPONSES_A_COMMIT)
        )
        with self._database.write(durable=False) as connection:
            removed = connection.execute(
                delete(responses).where(responses.c.number.in_(expired.scalar_subquery()))
            )
        return removed.rowcount


def _find(connection: Connection, owner: str, response_id: str, now_s: float) -> AnyRow:
    query = select(responses).where(
        responses.c.id == response_id,
        responses.c.owner == owner,
        responses.c.expires_at > now_s,
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no response {response_id}")
    return row


def _chain(newest: int) -> CTE:
    """The numbers and sizes of the response with this number and of all before it."""
    columns = select(responses.c.number, responses.c.previous, responses.c.size_bytes)
    chain = columns.where(responses.c.number == newest).cte("chain", recursive=True)
    return chain.union_all(columns.where(responses.c.number == chain.c.previous))


def _response_of(row: AnyRow) -> StoredResponse:
    return StoredResponse(row.number, row.id, row.lost_at, row.input, row.body)
