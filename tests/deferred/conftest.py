"""Stores for the tests: on SQLite, and each also on PostgreSQL where its binaries are installed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferred.store import JobStore, open_store
from tests.deferred.jobs import emptied
from tests.support.postgres import FASTEST, Postgres


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FASTEST) as folder:
        yield Path(folder)


@pytest.fixture
def sqlite_store(data_dir: Path) -> Iterator[JobStore]:
    opened = open_store(data_dir)
    yield opened
    opened.close()


@pytest.fixture
def postgresql_url(postgres: Postgres) -> str:
    """Of an empty database."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def shared_postgresql_url(postgres: Postgres) -> str:
    """For one test after the other: to make a database takes longer than most tests."""
    return postgres.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """Without a row."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_store")
        return
    opened = emptied(open_store(request.getfixturevalue("shared_postgresql_url")))
    yield opened
    opened.close()
