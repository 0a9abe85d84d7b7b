import os
import shutil
import sqlite3
import threading
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

from deferred.entities import Batch, RequestCounts, Result
from deferred.errors import StoreInUseError, StoreUnavailableError, UnknownSchemaError
from deferred.store import JobStore, database, open_store
from deferred.store.migrations import SCRIPTS, migrate
from deferred.store.schema import metadata
from tests.deferred.jobs import (
    NOW_S,
    OWNER,
    WORKER,
    claim,
    create,
    finalise,
    full_disk,
    lines_of,
    new_items,
    save,
    started,
    validating,
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
    with pytest.raises(StoreInUseError, match=f"process {os.getpid()};.*DATA_DIR.*DATABASE_URL"):
        open_store(folder)
    assert create(store).status == "validating"
    store.close()
    again = open_store(f"sqlite:///{folder}/jobs.db")
    assert again.batches.get(OWNER, batch.id) == batch
    assert len(claim(again, 9)) == 3
    again.close()


def differences(connection: Connection) -> list[Any]:
    """Between the database and `schema.py`, as Alembic sees them."""
    return compare_metadata(MigrationContext.configure(connection), metadata)


def test_a_new_database_has_the_tables_that_the_queries_name(store_url: str) -> None:
    open_store(store_url).close()
    with connected(store_url) as connection:
        assert differences(connection) == []
        connection.execute(text("DROP INDEX batches_ended"))
        connection.execute(text("ALTER TABLE files ADD COLUMN more INTEGER"))
        assert len(differences(connection)) == 2, "nothing was compared"


@pytest.fixture
def batch(store_url: str) -> Batch:
    """Of a database that is there, and closed."""
    store = open_store(store_url)
    batch = started(store, 3)
    store.close()
    return batch


def require_unchanged(store_url: str, batch: Batch) -> None:
    with connected(store_url) as connection:
        assert differences(connection) == []
    store = open_store(store_url)
    assert store.batches.get(OWNER, batch.id) == batch
    store.close()


@pytest.mark.usefixtures("batch")
def test_a_database_of_a_later_version_or_of_before_the_first_release_is_refused(
    store_url: str,
) -> None:
    for statement, says in (
        ("UPDATE alembic_version SET version_num = 'later'", r"revision later.*newer program"),
        ("DROP TABLE alembic_version", r"before the first release.*name another"),
    ):
        with connected(store_url) as connection:
            connection.execute(text(statement))
        with pytest.raises(UnknownSchemaError, match=says):
            open_store(store_url)


LATER = """
from alembic import op

revision, down_revision = "3", "2"


def upgrade() -> None:
    op.execute("ALTER TABLE batches ADD COLUMN colour TEXT")
    op.execute("{then}")
"""


def later_scripts(folder: Path, then: str) -> Path:
    """The program's revisions, and one that a later release may add."""
    scripts = folder / "later 100%"
    shutil.copytree(SCRIPTS, scripts)
    (scripts / "versions" / "r3_later.py").write_text(LATER.format(then=then))
    return scripts


def test_a_later_release_changes_a_database_that_is_there_once(
    store_url: str, batch: Batch, tmp_path: Path
) -> None:
    scripts = later_scripts(tmp_path, f"UPDATE batches SET colour = 'red', id = '{batch.id}'")
    for _ in range(2):
        with connected(store_url) as connection:
            migrate(connection, scripts)
    with connected(store_url) as connection:
        assert [*connection.execute(text("SELECT id, colour FROM batches"))] == [(batch.id, "red")]
    with pytest.raises(UnknownSchemaError, match="revision 3"):
        open_store(store_url)


def test_a_database_of_the_first_release_gets_the_table_of_responses(
    store_url: str, batch: Batch
) -> None:
    with connected(store_url) as connection:
        connection.execute(text("DROP TABLE responses"))
        connection.execute(text("UPDATE alembic_version SET version_num = '1'"))
    open_store(store_url).close()
    require_unchanged(store_url, batch)


def test_a_change_that_fails_half_way_leaves_the_database_as_it_was(
    store_url: str, batch: Batch, tmp_path: Path
) -> None:
    scripts = later_scripts(tmp_path, "UPDATE no_table SET a = 1")
    store = open_store(store_url)
    with (
        pytest.raises((SQLAlchemyError, StoreUnavailableError), match="no_table"),
        store._database.write(durable=True) as connection,
    ):
        migrate(connection, scripts)
    store.close()
    require_unchanged(store_url, batch)


def test_servers_that_start_at_once_on_one_postgresql_migrate_once(postgresql_url: str) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> JobStore:
        barrier.wait()
        return open_store(postgresql_url)

    with ThreadPoolExecutor(4) as pool:
        opened = [*pool.map(start, range(4))]
    started(opened[0], 2)
    assert len(claim(opened[1], 9)) == 2
    for store in opened:
        store.close()


@pytest.mark.parametrize("url", ["mysql://me:secret@host/jobs", "sqlite://", "postgresql://host"])
def test_another_kind_of_url_is_refused_without_telling_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://user:password@host/database") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_database_that_cannot_be_opened_is_unavailable(data_dir: Path) -> None:
    (data_dir / "jobs.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreUnavailableError, match="not a database"):
        open_store(data_dir)
    (data_dir / "file").touch()
    with pytest.raises(StoreUnavailableError):
        open_store(data_dir / "file" / "data")
    with pytest.raises(StoreUnavailableError):
        open_store(f"postgresql://postgres@/jobs?host={data_dir}")


def test_a_full_disk_shows_nothing_by_halves_and_loses_nothing(
    sqlite_store: JobStore, data_dir: Path
) -> None:
    batch = started(sqlite_store, 20)
    unready = validating(sqlite_store)
    items = claim(sqlite_store, 10)
    with full_disk(data_dir):
        with pytest.raises(StoreUnavailableError):
            sqlite_store.files.create(OWNER, "batch", "x", [b"x" * 2**20] * 9, NOW_S)
        with pytest.raises(StoreUnavailableError):
            sqlite_store.items.add(unready.id, WORKER, new_items(5000))
        with pytest.raises(StoreUnavailableError):
            sqlite_store.items.save(WORKER, [Result(i.lease, True, b"x" * 2**20) for i in items])
        assert sqlite_store.batches.get(OWNER, batch.id) == batch
        assert len(sqlite_store.files.list(OWNER, NOW_S).data) == 2
        assert sqlite_store.batches.get(OWNER, unready.id) == unready
    assert save(sqlite_store, items) == 10
    save(sqlite_store, claim(sqlite_store, 20))
    ended = finalise(sqlite_store)
    assert ended.counts == RequestCounts(20, completed=20)
    assert len(lines_of(sqlite_store, OWNER, ended.output_file_id)) == 20


def test_a_database_that_others_lock_is_unavailable_after_a_bounded_wait(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    store = open_store(data_dir)
    batch = create(store)
    other = sqlite3.connect(data_dir / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        store.batches.cancel(OWNER, batch.id, NOW_S)
    assert store.batches.get(OWNER, batch.id) == batch, "who reads does not wait"
    other.execute("ROLLBACK")
    other.close()
    assert store.batches.cancel(OWNER, batch.id, NOW_S).status == "cancelling"
    store.close()


def test_a_thread_that_waits_for_another_to_write_gives_up(
    sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_S", 0.05)
    with ThreadPoolExecutor(1) as pool:
        with sqlite_store._database.write(durable=False):
            refused = pool.submit(create, sqlite_store).exception()
        assert isinstance(refused, StoreUnavailableError)
        assert "busy" in str(refused)
        assert pool.submit(create, sqlite_store).result()
