"""How a database is opened: by one process on SQLite, by many on PostgreSQL; and what it does when
it is locked or its disk is full."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from deferred.entities import Base
from deferred.errors import StoreInUseError, StoreUnavailableError, UnknownSchemaError
from deferred.store import database, open_store
from deferred.store.migrations import SCRIPTS, migrate
from tests.deferred.jobs import (
    NOW_S,
    OWNER,
    claim,
    create,
    shown,
    started,
)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_a_folder_is_made_and_its_database_has_one_user_at_a_time(data_dir: Path) -> None:
    folder = data_dir / "new" / "data"
    store = open_store(folder)
    batch = started(store, 3)
    with pytest.raises(StoreInUseError, match=f"process {os.getpid()};"):
        open_store(folder)
    store.close()
    again = open_store(f"sqlite:///{folder}/jobs.db")
    assert shown(again.batches.get(OWNER, batch.id)) == shown(batch)
    assert len(claim(again, 9)) == 3
    again.close()


def differences(connection: Connection) -> list[Any]:
    """Between the database and `entities.py`, as Alembic sees them."""
    return compare_metadata(MigrationContext.configure(connection), Base.metadata)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('data_dir')}/jobs.db"
    return request.getfixturevalue("postgresql_url")


LATER = """
from alembic import op

revision, down_revision = "3", "2"


def upgrade() -> None:
    op.execute("ALTER TABLE batches ADD COLUMN colour TEXT")
    op.execute("{then}")
"""


def later_scripts(folder: Path, then: str) -> Path:
    """The program's revisions, and one that a later release may add."""
    scripts = folder / f"{len(then)} %"
    shutil.copytree(SCRIPTS, scripts)
    (scripts / "versions" / "r3_later.py").write_text(LATER.format(then=then))
    return scripts


def test_each_release_changes_a_database_that_is_there_once_and_wholly(
    store_url: str, tmp_path: Path
) -> None:
    store = open_store(store_url)
    batch = started(store, 3)
    half_way = later_scripts(tmp_path, "UPDATE no_table SET a = 1")
    with (
        pytest.raises((SQLAlchemyError, StoreUnavailableError), match="no_table"),
        store._database.write(durable=True) as session,
    ):
        migrate(session.connection(), half_way)
    store.close()
    with connected(store_url) as connection:
        assert differences(connection) == []
    store = open_store(store_url)
    assert shown(store.batches.get(OWNER, batch.id)) == shown(batch)
    store.close()
    with connected(store_url) as connection:
        assert differences(connection) == []
    scripts = later_scripts(tmp_path, f"UPDATE batches SET colour = 'red', id = '{batch.id}'")
    for _ in range(2):
        with connected(store_url) as connection:
            migrate(connection, scripts)
    with connected(store_url) as connection:
        assert [*connection.execute(text("SELECT id, colour FROM batches"))] == [(batch.id, "red")]
    with pytest.raises(UnknownSchemaError, match=r"revision 3.*newer program"):
        open_store(store_url)
    with connected(store_url) as connection:
        connection.execute(text("DROP TABLE alembic_version"))
    with pytest.raises(UnknownSchemaError, match="before the first release"):
        open_store(store_url)


@pytest.mark.parametrize("url", ["mysql://me:secret@host/jobs", "sqlite://", "postgresql://host"])
def test_another_kind_of_url_is_refused_without_telling_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://user:password@host/database") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_database_that_cannot_be_opened_is_unavailable(data_dir: Path) -> None:
    (data_dir / "jobs.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreUnavailableError, match="not a database"):
        open_store(data_dir)
    with pytest.raises(StoreUnavailableError):
        open_store(f"postgresql://postgres@/jobs?host={data_dir}")


def test_a_database_that_others_lock_is_unavailable_after_a_bounded_wait(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    store = open_store(data_dir)
    batch = create(store)
    with ThreadPoolExecutor(1) as pool:
        with store._database.write(durable=False):
            refused = pool.submit(create, store).exception()
        assert isinstance(refused, StoreUnavailableError)
        assert pool.submit(create, store).result()
    other = sqlite3.connect(data_dir / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        store.batches.cancel(OWNER, batch.id, NOW_S)
    assert shown(store.batches.get(OWNER, batch.id)) == shown(batch), "who reads does not wait"
    other.execute("ROLLBACK")
    other.close()
    assert store.batches.cancel(OWNER, batch.id, NOW_S).status == "cancelling"
    store.close()
