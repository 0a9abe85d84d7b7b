"""Real routers and test upstreams as processes on ports the system chose."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import requests

from tests.support.forked import Forked

TIMEOUT_S = 60
T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """Polls for a state of another process; fails, naming it, when it does not come."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def raw_post(body: bytes, path: str = "/v1/completions") -> bytes:
    """For a client that leaves or stops reading."""
    head = f"POST {path} HTTP/1.1\r\nHost: [::]\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Farm:
    """A handle on a process of test upstreams."""

    def __init__(self, *args: str) -> None:
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed by close)
        log = Path(self._log.name)
        self.process = Forked("tests.router.farm", args, os.environ, log)
        until(lambda: log.read_text().endswith("\n"), "the farm's port")
        self.control = f"http://127.0.0.1:{int(log.read_text())}"
        self._session = requests.Session()

    def __call__(self, verb: str, **body: Any) -> dict[str, Any]:
        answer = self._session.post(f"{self.control}/{verb}", json=body, timeout=TIMEOUT_S)
        answer.raise_for_status()
        facts: dict[str, Any] = answer.json()
        return facts

    def new(self, **behaviour: Any) -> str:
        url: str = self("new", **behaviour)["url"]
        return url

    def state(self, url: str) -> dict[str, Any]:
        return self("state", url=url)

    def close(self) -> None:
        self._session.close()
        self.process.kill()
        self.process.wait()
        self._log.close()


class RouterProcess:
    """`python -m router` on a free port, its log, and shorthands for its endpoints."""

    def __init__(self, *upstreams: str, **options: Any) -> None:
        args = [f"--{k.replace('_', '-')}={v}" for k, v in options.items()]
        env = {k: v for k, v in os.environ.items() if k not in {"UPSTREAMS", "TIB_PORT"}}
        if upstreams:
            env["UPSTREAMS"] = ",".join(upstreams)
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed by close)
        self.process = Forked("router", ["--port=0", *args], env, Path(self._log.name))
        try:
            self.port = until(lambda: self.logged("listening"), "a listening router")[0]["port"]
        except BaseException:
            self.close()
            raise
        self.url = f"http://127.0.0.1:{self.port}"

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of an event so far."""
        written = Path(self._log.name).read_text()
        assert self.process.poll() is None or written, "the router ended"
        whole, _, _ = written.rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if line["message"] == event]

    def probed(self) -> "RouterProcess":
        until(lambda: self.get("/health").status_code == 200, "health")
        return self

    def post(self, path: str = "/v1/completions", **kwargs: Any) -> requests.Response:
        kwargs.setdefault("json", {"model": "m", "prompt": "x"})
        kwargs.setdefault("timeout", TIMEOUT_S)
        if "data" in kwargs:
            kwargs.pop("json")
        return requests.post(self.url + path, **kwargs)

    def get(self, path: str, **kwargs: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=TIMEOUT_S, **kwargs)

    def upstreams(self) -> dict[str, Any]:
        return {u["url"]: u for u in self.get("/upstreams").json()["upstreams"]}

    def waiting(self) -> int:
        return sum(self.get("/upstreams").json()["waiting"].values())

    def in_flight(self) -> int:
        return sum(u["in_flight"] for u in self.upstreams().values())

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of that name that carry the labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(
                f'{k}="{v}"' in series for k, v in labels.items()
            ):
                total += float(value)
        return total

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture
def start() -> Iterator[Callable[..., RouterProcess]]:
    """Starts routers that end with the test."""
    with ExitStack() as stack:

        def started(*upstreams: str, **options: Any) -> RouterProcess:
            router = RouterProcess(*upstreams, **options)
            stack.callback(router.close)
            return router

        yield started


@pytest.fixture(scope="session")
def shared(farm: Farm) -> Iterator[tuple[RouterProcess, str]]:
    """One router with one upstream, for tests that leave no trace."""
    upstream = farm.new(models=["m"])
    router = RouterProcess(upstream, max_connect_per_upstream=64)
    router.probed()
    yield router, upstream
    router.close()
