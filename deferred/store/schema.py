"""The tables as the queries see them. `migrations.py` makes them; a test holds the two together."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator

CHUNK_BYTES = 2**20


class Json(TypeDecorator[Any]):
    """A value as ASCII JSON. Strings of clients too: PostgreSQL stores no NUL, neither database a
    lone surrogate, and JSON may hold both."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


metadata = MetaData()

files = Table(
    "files",
    metadata,
    Column("number", BigInteger, primary_key=True),  # in the order of creation
    Column("id", Text),
    Column("owner", Text),
    Column("purpose", Text),
    Column("filename", Json),
    Column("state", Text),  # uploading, ready, deleted
    Column("size_bytes", BigInteger),
    Column("sha256", Text),
    Column("created_at", Double),
    Column("expires_at", Double),
)

file_chunks = Table(
    "file_chunks",
    metadata,
    Column("file", BigInteger, primary_key=True),
    Column("seq", Integer, primary_key=True),  # from 0; all but the last have CHUNK_BYTES
    Column("data", LargeBinary),
)

batches = Table(
    "batches",
    metadata,
    Column("number", BigInteger, primary_key=True),
    Column("id", Text),
    Column("owner", Text),
    Column("idempotency_key", Json),
    Column("input_file", BigInteger),  # its number: found also where the owner deleted it
    Column("input_file_id", Text),
    Column("endpoint", Text),
    Column("model", Text),
    Column("completion_window", Text),
    Column("metadata", Json),
    Column("output_expires_after_s", Double),
    Column("status", Text),
    Column("outcome", Text),  # the final status that finalising leads to
    Column("errors", Json),
    Column("created_at", Double),
    Column("expires_at", Double),
    Column("in_progress_at", Double),
    Column("finalizing_at", Double),
    Column("completed_at", Double),
    Column("failed_at", Double),
    Column("expired_at", Double),
    Column("cancelling_at", Double),
    Column("cancelled_at", Double),
    # fixed at creation, so that finalising again meets what an interrupted attempt left
    Column("planned_output_id", Text),
    Column("planned_error_id", Text),
    Column("output_file_id", Text),  # as the owner sees them: null until the end
    Column("error_file_id", Text),
    # changed in the transactions that change the items
    Column("total", Integer),
    Column("completed", Integer),
    Column("failed", Integer),
    Column("expired", Integer),
    Column("cancelled", Integer),
    Column("input_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("lease_owner", Text),  # who validates or finalises it
    Column("lease_until", Double),
    Column("swept", Integer),  # 1: its items are removed
)

# What changes often is small and apart from what is big and never changes: SQLite rewrites a whole
# row for one changed column.
batch_items = Table(
    "batch_items",
    metadata,
    Column("batch", BigInteger, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("custom_id", Json),
    Column("digest", LargeBinary),  # of custom_id, which may be too long for an index
    Column("state", Text),
    Column("attempt", Integer),  # counts the claims
    Column("lost", Integer),
    Column("lease_owner", Text),
    Column("lease_until", Double),
)

item_bodies = Table(
    "item_bodies",
    metadata,
    Column("batch", BigInteger, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("body", LargeBinary),
)

item_results = Table(
    "item_results",
    metadata,
    Column("batch", BigInteger, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("text", LargeBinary),
)
