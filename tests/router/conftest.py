"""Real routers as processes on ports the system chose, before test upstreams."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.forked import Forked
from tests.support.process import PATIENCE_S, Server, eventually
from tests.support.upstream import ScriptedUpstream


class RouterProcess:
    """`python -m router` on a free port, its log, and shorthands for its endpoints."""

    def __init__(self, *upstreams: ScriptedUpstream | Server | str, **options: Any) -> None:
        args = [f"--{k.replace('_', '-')}={v}" for k, v in options.items()]
        env = {k: v for k, v in os.environ.items() if k not in {"UPSTREAMS", "TIB_PORT"}}
        if upstreams:
            env["UPSTREAMS"] = ",".join(u if isinstance(u, str) else u.url for u in upstreams)
        key = options.get("admin_key")
        self._admin = {"Authorization": f"Bearer {key}"} if key else {}
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed by close)
        self.process = Forked("router", ["--port=0", *args], env, Path(self._log.name))
        try:
            self.port = eventually(lambda: self.logged("listening"), "a router")[0]["port"]
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

    def probed(self) -> RouterProcess:
        eventually(lambda: self.get("/health").status_code == 200, "health")
        return self

    def post(self, path: str = "/v1/completions", **kwargs: Any) -> requests.Response:
        if "data" not in kwargs:
            kwargs.setdefault("json", {"model": "m", "prompt": "x"})
        return requests.post(self.url + path, timeout=PATIENCE_S, **kwargs)

    def get(self, path: str, **kwargs: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=PATIENCE_S, **kwargs)

    def streaming(self) -> requests.Response:
        """A stream of which the first event has come."""
        answer = self.post(json={"model": "m", "stream": True}, stream=True)
        assert answer.raw.read(4) == b"data"
        return answer

    def change(self, method: str, url: str, path: str = "", **body: Any) -> int:
        """Changes the upstreams; returns the status."""
        address, asked = f"{self.url}/upstreams{path}", {"url": url, **body}
        return requests.request(
            method, address, json=asked, headers=self._admin, timeout=PATIENCE_S
        ).status_code

    def upstreams(self) -> dict[str, Any]:
        shown = self.get("/upstreams", headers=self._admin).json()["upstreams"]
        return {u["url"]: u for u in shown}

    def waiting(self) -> int:
        shown = self.get("/upstreams", headers=self._admin).json()
        return sum(shown["waiting"].values())

    def in_flight(self) -> int:
        return sum(u["in_flight"] for u in self.upstreams().values())

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of that name that carry the labels."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        series = [sample for family in families for sample in family.samples]
        found = [one for one in series if one.name == name and labels.items() <= one.labels.items()]
        return sum(sample.value for sample in found)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


class Net(ExitStack):
    """Makes upstreams and routers before them, which end with it."""

    def upstream(self, *models: str, **behaviour: Any) -> ScriptedUpstream:
        return self.enter_context(closing(ScriptedUpstream(*models, **behaviour).start()))

    def starting(
        self, *upstreams: ScriptedUpstream | Server | str, **options: Any
    ) -> RouterProcess:
        """A router that may not have probed its upstreams."""
        return self.enter_context(closing(RouterProcess(*upstreams, **options)))

    def router(self, *upstreams: ScriptedUpstream | Server | str, **options: Any) -> RouterProcess:
        return self.starting(*upstreams, **options).probed()


class Pair(NamedTuple):
    router: RouterProcess
    upstream: ScriptedUpstream


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


@pytest.fixture(scope="session")
def shared() -> Iterator[Pair]:
    """One router with one upstream, for tests that leave no trace."""
    with Net() as net:
        upstream = net.upstream()
        yield Pair(net.router(upstream, max_connect_per_upstream=64), upstream)
