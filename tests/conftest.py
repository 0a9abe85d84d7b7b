"""Settings of all tests."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports Triton: without a GPU its kernels run on a CPU, interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.smollm2 import fetched
from tests.support.postgres import Postgres
from tests.support.process import close_all

# else every worker, and every process that a test starts, compiles all that it imports
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# a runner that was started in the background ignores these, and so would the servers under test
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The machine may be shared and slow: what a property costs is bounded by its number of examples.
# They are the same in every run, but in the long forms.
settings.register_profile("project", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("long", deadline=None, max_examples=200)
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("markexpr"):  # ./test.sh --long
        settings.load_profile("long")


def pytest_collection_finish() -> None:
    """Interpreted kernels took a third of their time for sums in int64, which nothing read."""
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        builder = interpreter.interpreter_builder
        builder.options = replace(builder.options, sanitize_overflow=False)


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    return fetched()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    """No test leaves a connection open, which would fail a later one."""
    yield
    close_all()
