"""Real Ray nodes on this machine: what a killed one and a server that drains cost clients."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import openai
import psutil
import pytest
import requests

from tests.support.official import line, official, outcome, submitted
from tests.support.postgres import Postgres
from tests.support.process import ROOT
from tests.support.process import eventually as within

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

LINES = 2_000
PATIENCE_S = 240.0  # Ray and three servers start beside other tests
STREAMS = 32
PLACES = 2 * 8  # of two servers
ASKED: Any = {"model": "embedded", "prompt": "import", "extra_body": {"ignore_eos": True}}
NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}
SECONDS = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}

eventually = functools.partial(within, within_s=PATIENCE_S)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head without room, and two nodes, each with room for both replicas."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "_system_config": SECONDS}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(**NODE, num_cpus=2)
    yield cluster
    cluster.shutdown()


class Started(NamedTuple):
    url: str
    log: Path
    begun: list[None]  # one for each stream whose first event has come

    def servers(self) -> list[int]:
        """The processes of all that were started, in that order."""
        return [int(pid) for pid in re.findall(r"server started, pid (\d+)", self.log.read_text())]

    def upstreams(self) -> list[dict[str, Any]]:
        shown = requests.get(f"{self.url}/upstreams", timeout=PATIENCE_S).json()
        return list(shown["upstreams"])

    def ready(self) -> int:
        return sum(upstream["ready"] for upstream in self.upstreams())

    def client(self) -> openai.OpenAI:
        return official(self).with_options(timeout=PATIENCE_S)

    def completes(self) -> bool:
        return bool(self.client().completions.create(**ASKED, max_tokens=4).choices)

    def streams(self, tokens: int) -> str:
        """How a stream ends."""
        try:
            events = self.client().completions.create(**ASKED, max_tokens=tokens, stream=True)
            next(events)
            self.begun.append(None)
            for _ in events:
                pass
        except openai.APIError as error:
            return type(error).__name__
        return "whole"


@contextlib.contextmanager
def started(nodes: Cluster, log: Path, *options: str, **variables: str) -> Iterator[Started]:
    first = random.randrange(20_000, 30_000, 10)  # below the ports that the system gives to others
    url = f"http://127.0.0.1:{first + 5}"
    command = [sys.executable, "-P", "-m", "cluster", "--address", nodes.address]
    command += ["--port", str(first + 5), "--replica-port", str(first), "--max-batch-size", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    cluster = Started(url, log, [])
    try:
        eventually(lambda: process.poll() is not None or "ready on " + url in log.read_text(), url)
        yield cluster
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert not [pid for pid in cluster.servers() if psutil.pid_exists(pid)]
    finally:
        process.kill()
        process.wait()


def test_a_draining_server_and_a_killed_node_are_replaced_and_cost_what_had_begun_at_most(
    nodes: Cluster, postgres: Postgres, tmp_path: Path
) -> None:
    """Requests that wait start a second server. One that is asked to end answers what it accepted.
    A node that dies costs no request that had no answer yet, and no line of a batch."""
    database = postgres.new_database()
    with (
        started(nodes, tmp_path / "log", "--replicas", "1..2", DATABASE_URL=database) as cluster,
        ThreadPoolExecutor(2 * STREAMS) as clients,
    ):
        streams = [clients.submit(cluster.streams, 900) for _ in range(PLACES)]
        eventually(lambda: cluster.ready() == 2, "requests that wait start a second replica")
        os.kill(cluster.servers()[0], signal.SIGTERM)
        assert {stream.result() for stream in streams} == {"whole"}
        eventually(lambda: cluster.ready() == 2 and len(cluster.servers()) == 3, "a third server")
        client = cluster.client()
        batch = submitted(client, [line(number, max_tokens=2) for number in range(LINES)])
        streams = [clients.submit(cluster.streams, 200) for _ in range(STREAMS)]
        eventually(lambda: len(cluster.begun) >= 2 * PLACES, "all places taken again")
        asked = [clients.submit(cluster.completes) for _ in range(STREAMS)]
        kill_a_node(nodes)
        nodes.add_node(**NODE, num_cpus=2)
        assert all(answer.result() for answer in asked)
        ends = [stream.result() for stream in streams]
        assert set(ends) <= {"whole", "APIError"}  # which is the event of an error
        assert 0 < ends.count("APIError") <= PLACES  # what ran on the dead node, and had begun
        eventually(lambda: cluster.ready() == 2 and len(cluster.servers()) > 3, "a fourth server")
        eventually(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch")
        outcome(client, client.batches.retrieve(batch.id), LINES)


def kill_a_node(nodes: Cluster) -> None:
    """Kills the node with most replicas, and everything that it started, as a power cut does."""

    def tree(node: Any) -> list[psutil.Process]:
        (raylet,) = node.all_processes["raylet"]
        process = psutil.Process(raylet.process.pid)
        return [process, *process.children(recursive=True)]

    def count(node: Any) -> int:
        return sum("ray::Replica" in process.name() for process in tree(node))

    node = max(nodes.worker_nodes, key=count)
    assert count(node)
    for process in tree(node):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    nodes.worker_nodes.remove(node)
