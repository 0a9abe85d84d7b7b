"""Stored responses: whose they are, what they continue, and when they go."""

from __future__ import annotations

import pytest

from deferred.entities import StoredResponse
from deferred.errors import ConversationTooLongError, NotFoundError, QuotaExceededError
from deferred.store import JobStore
from tests.deferred.jobs import EXPIRES_S, NOW_S, OWNER, swept

PLENTY = 10_000


def create(
    store: JobStore,
    name: str,
    previous: StoredResponse | None = None,
    *,
    expires_at: float = EXPIRES_S,
    lost_at: float | None = None,
) -> StoredResponse:
    number = None if previous is None else previous.number
    new = StoredResponse(id=name, owner=OWNER, previous=number, input=b"in", body=b"out")
    new.created_at, new.expires_at, new.lost_at = NOW_S, expires_at, lost_at
    store.responses.create(new)
    return store.responses.get(OWNER, name, NOW_S)


def ids(store: JobStore, newest: str, now_s: float = NOW_S) -> list[str]:
    found = store.responses.conversation(OWNER, newest, now_s, most_bytes=PLENTY)
    return [response.id for response in found]


def test_a_conversation_is_read_from_its_beginning_which_must_be_there(store: JobStore) -> None:
    first = create(store, "a")
    create(store, "c", create(store, "b", first))
    create(store, "other", first)
    assert ids(store, "c") == ["a", "b", "c"]
    assert ids(store, "other") == ["a", "other"]
    with pytest.raises(ConversationTooLongError, match="15 bytes; allowed: 14"):
        store.responses.conversation(OWNER, "c", NOW_S, most_bytes=14)
    store.responses.delete(OWNER, "a", NOW_S)
    for newest in "bc":
        with pytest.raises(NotFoundError, match="was deleted"):
            ids(store, newest)


def test_a_conversation_is_kept_as_long_as_its_newest_response(store: JobStore) -> None:
    first = create(store, "a", expires_at=NOW_S + 10)
    create(store, "alone", expires_at=NOW_S + 10)
    create(store, "b", first, expires_at=NOW_S + 20)
    assert ids(store, "b", NOW_S + 15) == ["a", "b"]
    with pytest.raises(NotFoundError):
        store.responses.get(OWNER, "alone", NOW_S + 10)
    assert [swept(store, StoredResponse, NOW_S + s) for s in (10, 20, 20)] == [1, 2, 0]


def test_a_response_that_is_generated_ends_once_and_counts_in_the_quota(store: JobStore) -> None:
    create(store, "a", lost_at=NOW_S + 5)
    store.responses.require_room(OWNER, 5, 10)
    with pytest.raises(QuotaExceededError, match=r"11 bytes, at most 10 .*--max-stored-bytes"):
        store.responses.require_room(OWNER, 6, 10)
    store.responses.require_room("another", 10, 10)
    assert store.responses.end("a", b"the end")
    assert not store.responses.end("a", b"another end")
    assert not store.responses.end("never stored", b"")
    ended = store.responses.get(OWNER, "a", NOW_S)
    assert (ended.body, ended.lost_at) == (b"the end", None)
    store.responses.require_room(OWNER, 1, 10)
    with pytest.raises(QuotaExceededError):
        store.responses.require_room(OWNER, 2, 10)
    store.responses.delete(OWNER, "a", NOW_S)
    store.responses.require_room(OWNER, 10, 10)
