"""Real servers as processes, and workloads small enough to play in a second."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from client.load.http.target import Target
from client.load.servers.processes import Server, System, await_health, launched
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload


def command(mode: str, **options: object) -> tuple[str, ...]:
    """How to start the model server of the tests."""
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
    return (
        sys.executable, "-m", "tests.client.modelserver", "--mode", mode, *itertools.chain(*flags)
    )  # fmt: skip


@contextlib.contextmanager
def started(command: Sequence[str], name: str, log: Path, start_s: float) -> Iterator[Server]:
    """A server that responds."""
    with launched(command, name, log) as server:
        await_health(server, start_s)
        yield server


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Commands take them for an interrupt."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


StartServer = Callable[..., Target]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts model servers that end with the test."""
    with contextlib.ExitStack() as stack:

        def start(mode: str = "dynamic", **options: object) -> Target:
            line = command(mode, **options)
            log = tmp_path / "server.log"
            return stack.enter_context(started(line, mode, log, 60.0)).target

        yield start


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server of all tests, quick and with no fault of its own."""
    log = tmp_path_factory.mktemp("target") / "log"
    with started(command("dynamic"), "dynamic", log, 60.0) as server:
        yield server.target


@pytest.fixture(scope="session")
def faulty(target: Target) -> Callable[..., str]:
    """Addresses of servers that fail after so many answers; see `modelserver`."""
    tags = itertools.count()
    return lambda fault, after=0: f"{target.url}/{fault}/{after}/{next(tags)}"


def system(mode: str, **options: object) -> System:
    return System(mode, command(mode, **options), None)


def workload(**values: object) -> Workload:
    """A workload of prompts 'Request i' that lasts about a second."""
    defaults: dict[str, object] = {
        "requests": 20, "rate": 40.0, "prompts": "request", "output_tokens": "uniform:2,9",
    }  # fmt: skip
    return make(Recipe(**{**defaults, **values}))  # type: ignore[arg-type]
