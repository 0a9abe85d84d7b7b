"""Real Ray nodes on this machine: what a killed one and a server that drains cost clients."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import requests

from tests.support.postgres import Postgres
from tests.support.process import ROOT
from tests.support.process import eventually as within

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

LINES = 2_000
PATIENCE_S = 240.0  # Ray and three servers start beside other tests
STREAMS = 32
SECONDS = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}

eventually = functools.partial(within, within_s=PATIENCE_S)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head without room, and two nodes, each with room for both replicas."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    common = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}
    head = {**common, "num_cpus": 0, "include_dashboard": False, "_system_config": SECONDS}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(**common, num_cpus=2)
    yield cluster
    cluster.shutdown()


@contextlib.contextmanager
def started(nodes: Cluster, log: Path, *options: str, **variables: str) -> Iterator[Any]:
    first = random.randrange(20_000, 30_000, 10)  # below the ports that the system gives to others
    port = first + 5
    command = [sys.executable, "-P", "-m", "cluster", "--address", nodes.address]
    command += ["--port", str(port), "--replica-port", str(first), "--max-batch-size", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: process.poll() is not None or "ready on " + url in log.read_text(), url)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert not [pid for pid in servers(log) if psutil.pid_exists(pid)]
    finally:
        process.kill()
        process.wait()


def servers(log: Path) -> list[int]:
    """The processes of all servers that were started, in that order."""
    return [int(pid) for pid in re.findall(r"server started, pid (\d+)", log.read_text())]


def upstreams(url: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = requests.get(f"{url}/upstreams", timeout=PATIENCE_S).json()[
        "upstreams"
    ]
    return listed


def ready(url: str) -> int:
    return sum(upstream["ready"] for upstream in upstreams(url))


def completed(url: str, tokens: int = 4) -> int:
    body = {"model": "embedded", "prompt": "import", "max_tokens": tokens, "ignore_eos": True}
    return requests.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S).status_code


def streamed(url: str, tokens: int) -> str:
    """How a stream ends: `[DONE]`, or the type of its error."""
    body = {"model": "embedded", "prompt": "import", "max_tokens": tokens, "ignore_eos": True}
    with requests.post(
        f"{url}/v1/completions", json=body | {"stream": True}, stream=True, timeout=PATIENCE_S
    ) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
    last = events[-1].decode()
    return last if last == "[DONE]" else str(next(iter(json.loads(last))))


def test_a_node_that_is_killed_costs_no_request_that_had_no_answer_yet(
    nodes: Cluster, postgres: Postgres, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        started(nodes, log, "--replicas", "2", DATABASE_URL=postgres.new_database()) as url,
        ThreadPoolExecutor(3 * STREAMS) as clients,
    ):
        eventually(lambda: ready(url) == 2, "two replicas are ready")
        batch = created(url)
        streams = [clients.submit(streamed, url, 200) for _ in range(STREAMS)]
        eventually(lambda: sum(u["in_flight"] for u in upstreams(url)) == 16, "all places taken")
        asked = [clients.submit(completed, url) for _ in range(STREAMS)]
        kill_a_node(nodes)
        nodes.add_node(node_ip_address="127.0.0.1", object_store_memory=100 * 2**20, num_cpus=2)
        assert {answer.result() for answer in asked} == {200}
        ends = [stream.result() for stream in streams]
        assert set(ends) <= {"[DONE]", "error"}
        assert 0 < ends.count("error") <= 16  # what ran on the dead node, and had begun
        eventually(
            lambda: ready(url) == 2 and log.read_text().count("server started") == 3,
            "it lives elsewhere",
        )
        ids = lines_of(url, batch)
        assert sorted(ids) == sorted(f"r{n}" for n in range(LINES))


def test_a_server_that_drains_is_replaced_without_a_cut_stream(
    nodes: Cluster, tmp_path: Path
) -> None:
    """A server asked to end answers what it accepted and is started again; others serve the rest.
    Requests that wait start a second one."""
    log = tmp_path / "log"
    options = ("--replicas", "1..2", "--data-dir", str(tmp_path))
    with started(nodes, log, *options) as url, ThreadPoolExecutor(24) as clients:
        streams = [clients.submit(streamed, url, 900) for _ in range(16)]
        eventually(lambda: ready(url) == 2, "requests that wait start a second replica")
        os.kill(servers(log)[0], signal.SIGTERM)
        assert {stream.result() for stream in streams} == {"[DONE]"}
        eventually(lambda: ready(url) == 2 and len(servers(log)) == 3, "it was started again")
        answers = [clients.submit(completed, url) for _ in range(8)]
        assert {answer.result() for answer in answers} == {200}


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


def created(url: str) -> str:
    line = {"method": "POST", "url": "/v1/completions"}
    body = {"model": "embedded", "prompt": "import", "max_tokens": 2}
    text = "".join(
        json.dumps({**line, "custom_id": f"r{n}", "body": body}) + "\n" for n in range(LINES)
    )
    form = {"file": ("lines.jsonl", text)}
    file = requests.post(
        f"{url}/v1/files", files=form, data={"purpose": "batch"}, timeout=PATIENCE_S
    ).json()
    asked = {"input_file_id": file["id"], "endpoint": line["url"], "completion_window": "24h"}
    batch: str = requests.post(f"{url}/v1/batches", json=asked, timeout=PATIENCE_S).json()["id"]
    return batch


def lines_of(url: str, batch: str) -> list[str]:
    def shown() -> dict[str, Any]:
        answer: dict[str, Any] = requests.get(
            f"{url}/v1/batches/{batch}", timeout=PATIENCE_S
        ).json()
        return answer

    eventually(lambda: shown().get("status") == "completed", "the batch is complete")
    text = requests.get(
        f"{url}/v1/files/{shown()['output_file_id']}/content", timeout=PATIENCE_S
    ).text
    return [json.loads(line)["custom_id"] for line in text.splitlines()]
