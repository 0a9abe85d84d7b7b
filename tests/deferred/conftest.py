"""Stores for the tests: on SQLite, and each also on PostgreSQL where its binaries are installed."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from deferred.store import JobStore, open_store
from deferred.store.schema import metadata
from tests.deferred.postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture
def postgresql_url(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty folder, in memory where it can be: a busy disk takes long for each sync."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request) -> str:
    """Names an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('data_dir')}/jobs.db"
    return request.getfixturevalue("postgresql_url")


@pytest.fixture
def sqlite_store(data_dir: Path) -> Iterator[JobStore]:
    opened = open_store(data_dir)
    yield opened
    opened.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Those who work on a store need not know its database. Its own tests are on both, and so are
    those that ask for `each_store`."""
    if "each_store" in metafunc.fixturenames:
        asked = "each_store" in inspect.signature(metafunc.function).parameters
        both = asked or "store" in metafunc.definition.path.parts
        kinds = ["sqlite", "postgresql"] if both else ["sqlite"]
        metafunc.parametrize("each_store", kinds, indirect=True)


@pytest.fixture
def store(each_store: JobStore) -> JobStore:
    return each_store


@pytest.fixture(scope="session")
def shared_postgresql_url(postgres: Postgres) -> str:
    """For one test after the other: to make a database takes longer than most tests."""
    return postgres.new_database()


def empty(store: JobStore) -> None:
    with store._database.write(durable=False) as connection:
        connection.execute(text(f"TRUNCATE {', '.join(metadata.tables)}"))


@pytest.fixture
def each_store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """Without a row."""
    if request.param == "sqlite":
        opened = open_store(request.getfixturevalue("data_dir"))
    else:
        opened = open_store(request.getfixturevalue("shared_postgresql_url"))
        empty(opened)
    yield opened
    opened.close()
