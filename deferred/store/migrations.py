"""The versions of the schema, each as the statements that lead to it from the one before.

What is released is never edited: a change is a further function at the end of MIGRATIONS, and
`schema.py` follows it.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, text

from deferred.errors import SchemaTooNewError

LOCK_KEY = 0x6A6F6273  # any number: servers that start at once migrate one after the other


def _first(sqlite: bool) -> list[str]:
    serial = "INTEGER PRIMARY KEY AUTOINCREMENT" if sqlite else "BIGSERIAL PRIMARY KEY"
    blob = "BLOB" if sqlite else "BYTEA"
    time = "DOUBLE PRECISION"
    return [
        f"""CREATE TABLE files (
            number {serial}, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, purpose TEXT NOT NULL,
            filename TEXT NOT NULL, state TEXT NOT NULL, size_bytes BIGINT NOT NULL,
            sha256 TEXT NOT NULL, created_at {time} NOT NULL, expires_at {time}
        )""",
        "CREATE INDEX files_owner ON files (owner, number)",
        "CREATE INDEX files_gone ON files (number) WHERE state <> 'ready'",
        "CREATE INDEX files_expiry ON files (expires_at) WHERE expires_at IS NOT NULL",
        f"""CREATE TABLE file_chunks (
            file BIGINT NOT NULL, seq INTEGER NOT NULL, data {blob} NOT NULL,
            PRIMARY KEY (file, seq)
        )""",
        f"""CREATE TABLE batches (
            number {serial}, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, idempotency_key TEXT,
            input_file BIGINT NOT NULL, input_file_id TEXT NOT NULL, endpoint TEXT NOT NULL,
            model TEXT NOT NULL, completion_window TEXT NOT NULL, metadata TEXT,
            output_expires_after_s {time}, status TEXT NOT NULL, outcome TEXT NOT NULL, errors TEXT,
            created_at {time} NOT NULL, expires_at {time} NOT NULL, in_progress_at {time},
            finalizing_at {time}, completed_at {time}, failed_at {time}, expired_at {time},
            cancelling_at {time}, cancelled_at {time},
            planned_output_id TEXT NOT NULL, planned_error_id TEXT NOT NULL,
            output_file_id TEXT, error_file_id TEXT,
            total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0, expired INTEGER NOT NULL DEFAULT 0,
            cancelled INTEGER NOT NULL DEFAULT 0, input_tokens BIGINT NOT NULL DEFAULT 0,
            cached_tokens BIGINT NOT NULL DEFAULT 0, output_tokens BIGINT NOT NULL DEFAULT 0,
            lease_owner TEXT, lease_until {time}, swept INTEGER NOT NULL DEFAULT 0,
            UNIQUE (owner, idempotency_key)
        )""",
        "CREATE INDEX batches_owner ON batches (owner, number)",
        "CREATE INDEX batches_status ON batches (status, swept)",
        f"""CREATE TABLE batch_items (
            batch BIGINT NOT NULL, line INTEGER NOT NULL, custom_id TEXT NOT NULL,
            digest {blob} NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
            lost INTEGER NOT NULL DEFAULT 0, lease_owner TEXT, lease_until {time},
            PRIMARY KEY (batch, line), UNIQUE (batch, digest)
        )""",
        "CREATE INDEX items_pending ON batch_items (batch, line) WHERE state = 'pending'",
        "CREATE INDEX items_running ON batch_items (lease_owner) WHERE state = 'running'",
        f"""CREATE TABLE item_bodies (
            batch BIGINT NOT NULL, line INTEGER NOT NULL, body {blob} NOT NULL,
            PRIMARY KEY (batch, line)
        )""",
        f"""CREATE TABLE item_results (
            batch BIGINT NOT NULL, line INTEGER NOT NULL, text {blob} NOT NULL,
            PRIMARY KEY (batch, line)
        )""",
    ]


MIGRATIONS: tuple[Callable[[bool], list[str]], ...] = (_first,)


def migrate(connection: Connection, now_s: float) -> None:
    """Brings the schema to the latest version, within the transaction of `connection`.

    Raises SchemaTooNewError.
    """
    sqlite = connection.dialect.name == "sqlite"
    if not sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
    connection.execute(
        text(
            "CREATE TABLE IF NOT EXISTS schema_versions "
            "(version INTEGER PRIMARY KEY, applied_at DOUBLE PRECISION NOT NULL)"
        )
    )
    current = connection.execute(text("SELECT max(version) FROM schema_versions")).scalar() or 0
    if current > len(MIGRATIONS):
        raise SchemaTooNewError(
            f"the job database has schema version {current}, this program knows versions up to "
            f"{len(MIGRATIONS)}: run the newer program, or name another database"
        )
    for version in range(current + 1, len(MIGRATIONS) + 1):
        for statement in MIGRATIONS[version - 1](sqlite):
            connection.execute(text(statement))
        connection.execute(
            text("INSERT INTO schema_versions VALUES (:version, :now_s)"),
            {"version": version, "now_s": now_s},
        )
