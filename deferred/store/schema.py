"""The tables. `migrations/` makes a new database from them."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator

CHUNK_BYTES = 2**20


class Json(TypeDecorator[Any]):
    """A value as ASCII JSON. Clients' strings are stored this way too: they may contain NUL, which
    PostgreSQL cannot store."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def _serial() -> Column[int]:
    """Rises with each row and is never used twice, even after the last row is removed."""
    # SQLite autoincrements only columns of this type
    return Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)


def _given(name: str, type_: Any) -> Column[Any]:
    return Column(name, type_, nullable=False)


def _count(name: str, type_: Any = Integer) -> Column[int]:
    return Column(name, type_, nullable=False, server_default="0")


metadata = MetaData()

files = Table(
    "files",
    metadata,
    _serial(),
    Column("id", Text, nullable=False, unique=True),
    _given("owner", Text),
    _given("purpose", Text),
    _given("filename", Json),
    _given("state", Text),  # uploading, ready, deleted
    _given("size_bytes", BigInteger),  # while it is uploading: so far
    _given("sha256", Text),
    _given("created_at", Double),
    Column("expires_at", Double),
    Index("files_owner", "owner", "number"),
    Index("files_stored", "owner", "state", "size_bytes"),
    Index("files_state", "state", "expires_at"),
    sqlite_autoincrement=True,
)

file_chunks = Table(
    "file_chunks",
    metadata,
    Column("file", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True),  # from 0; all but the last have CHUNK_BYTES
    _given("data", LargeBinary),
)

batches = Table(
    "batches",
    metadata,
    _serial(),
    Column("id", Text, nullable=False, unique=True),
    _given("owner", Text),
    Column("idempotency_key", Json),
    _given("input_file", BigInteger),  # its number, which still leads to a deleted file
    _given("input_file_id", Text),
    _given("endpoint", Text),
    _given("model", Text),
    _given("completion_window", Text),
    Column("metadata", Json),
    Column("output_expires_after_s", Double),
    _given("status", Text),
    _given("outcome", Text),  # the final status that finalising leads to
    Column("errors", Json),
    _given("created_at", Double),
    _given("expires_at", Double),
    Column("in_progress_at", Double),
    Column("finalizing_at", Double),
    Column("completed_at", Double),
    Column("failed_at", Double),
    Column("expired_at", Double),
    Column("cancelling_at", Double),
    Column("cancelled_at", Double),
    Column("ended_at", Double),  # equals that of its final status
    # fixed at creation, so that finalisation finds what an interrupted attempt left
    _given("planned_output_id", Text),
    _given("planned_error_id", Text),
    Column("output_file_id", Text),  # as the owner sees them: null until the end
    Column("error_file_id", Text),
    # changed in the transactions that change the items
    _count("total"),
    _count("completed"),
    _count("failed"),
    _count("expired"),
    _count("cancelled"),
    _count("input_tokens", BigInteger),
    _count("cached_tokens", BigInteger),
    _count("output_tokens", BigInteger),
    _count("stored_bytes", BigInteger),  # of its lines (the size of the input file) and results
    Column("lease_owner", Text),  # the worker that validates or finalises it
    Column("lease_until", Double),
    _count("swept"),  # 1: its items are removed
    UniqueConstraint("owner", "idempotency_key"),
    Index("batches_owner", "owner", "number"),
    Index("batches_status", "status", "swept"),
    Index("batches_ended", "ended_at"),
    Index("batches_leased", "lease_owner"),
    sqlite_autoincrement=True,
)

# Totals of the ended batches that are not removed yet, so that `progress` need not read them all.
ended_totals = Table(
    "ended_totals",
    metadata,
    Column("status", Text, primary_key=True),
    _count("batches", BigInteger),
    _count("total", BigInteger),
    _count("completed", BigInteger),
    _count("failed", BigInteger),
    _count("expired", BigInteger),
    _count("cancelled", BigInteger),
)

# Bodies and results, which are large and never change, have tables of their own: SQLite rewrites
# the whole row when one column changes.
batch_items = Table(
    "batch_items",
    metadata,
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True),
    _given("custom_id", Json),
    _given("digest", LargeBinary),  # of custom_id, which may be too long for an index
    _given("state", Text),
    _count("attempt"),  # counts the claims
    _count("lost"),
    Column("lease_owner", Text),
    Column("lease_until", Double),
    UniqueConstraint("batch", "digest"),
    Index(
        "items_pending",
        "batch",
        "line",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "items_running",
        "lease_owner",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
)

item_bodies = Table(
    "item_bodies",
    metadata,
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True),
    _given("body", LargeBinary),
)

item_results = Table(
    "item_results",
    metadata,
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True),
    _given("text", LargeBinary),
)

responses = Table(
    "responses",
    metadata,
    _serial(),
    Column("id", Text, nullable=False, unique=True),
    _given("owner", Text),
    Column("previous", BigInteger),  # number of the response that it continues
    _given("created_at", Double),
    _given("expires_at", Double),
    Column("lost_at", Double),  # when it counts as lost, unless it has ended; null: it has
    _given("size_bytes", BigInteger),  # of the two below
    _given("input", LargeBinary),  # its own items, without those of earlier responses
    _given("body", LargeBinary),
    Index("responses_stored", "owner", "size_bytes"),
    Index("responses_expiry", "expires_at"),
    Index(
        "responses_running",
        "lost_at",
        sqlite_where=text("lost_at IS NOT NULL"),
        postgresql_where=text("lost_at IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)
