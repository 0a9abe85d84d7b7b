"""Starts everything and ends it in order: Ray, the replicas, the router in front of them.

At the end the router answers what it accepted, then the servers do, then Ray ends. If the router
dies, it is started again. If this process is killed, everything drains and ends, too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from cluster.config import ClusterConfig
from cluster.fleet import BEAT_S, ReplicaFleet
from cluster.scaling import Scaling
from launcher.launcher import LineHandler, print_plain, probe_of
from model_server.supervisor import REFUSED, Command, ProcessGroup, Supervisor
from router.config import RouterConfig
from router.config import parse_args as parse_router
from serving.config import Config

ROOT = Path(__file__).resolve().parent.parent
OBJECTS_BYTES = 100 * 2**20  # of Ray's store, which nothing here uses
ROUTER_GRACE_S = 10.0  # beyond its drain timeout

log = logging.getLogger("cluster")


def run(config: ClusterConfig, server: Config, environ: Mapping[str, str] = os.environ) -> int:
    """Until SIGTERM or SIGINT; returns the exit status: 1 if nothing could be served."""
    logging.basicConfig(level=logging.INFO, handlers=[LineHandler("cluster", print_plain)])
    if not config.address and not server.cors_allow_origin:  # the first replica's page shows all
        origin = f"http://127.0.0.1:{config.replica_port}"
        server = dataclasses.replace(server, cors_allow_origin=origin)
    with tempfile.TemporaryDirectory(prefix="effective-batching-") as folder:
        listed = Path(folder) / "upstreams"
        listed.touch()
        environment = router_environment(server, environ)
        arguments = [
            "--host", config.host, "--port", str(config.port), "--upstreams-file", str(listed),
            "--max-connect-per-upstream", str(server.max_batch_size),
        ]  # fmt: skip
        router = parse_router(arguments, environment)
        ends_within_s = router.drain_timeout + ROUTER_GRACE_S
        program = Command(
            "router",
            [sys.executable, "-P", "-m", "router", *arguments],
            {**environment, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            probe_of(config.host, config.port),
            keeps_others=True,
        )
        supervisor = Supervisor([ProcessGroup(lambda: [program], ends_within_s)], print_plain)
        connect(config)
        ended = threading.Event()

        def end(_number: int, _frame: object) -> None:
            ended.set()
            supervisor.stop()

        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has set its own
            signal.signal(number, end)
        try:
            return _served(config, server, router, listed, supervisor, ended)
        finally:
            ray.shutdown()


def _served(
    config: ClusterConfig,
    server: Config,
    router: RouterConfig,
    listed: Path,
    supervisor: Supervisor,
    ended: threading.Event,
) -> int:
    scaling = Scaling(config.least, config.most, router.max_connect_per_upstream)
    fleet = ReplicaFleet(config, server, router, scaling, listed, supervisor)
    status = 0

    def keep() -> None:
        nonlocal status
        try:
            while not ended.is_set() and fleet.beat():
                ended.wait(BEAT_S)
        except Exception:
            log.error("%s", traceback.format_exc())
        if not ended.is_set():
            status = REFUSED
            ended.set()
        fleet.started.set()
        supervisor.stop()

    keeping = threading.Thread(target=keep, name="fleet", daemon=True)
    keeping.start()
    fleet.started.wait()  # set too when none can be ready
    refused = 0 if ended.is_set() else supervisor.run()
    ended.set()
    keeping.join()
    fleet.close()
    return refused or status


def router_environment(server: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The servers' keys are those of the router, and a shared database serves everyone's jobs,
    unless the environment says otherwise."""
    environment = dict(environ)
    if server.api_key:
        environment.setdefault("API_KEYS", server.api_key)
        environment.setdefault("UPSTREAM_API_KEY", server.api_key.partition(",")[0])
    if server.database_url and server.database_url.startswith("postgresql"):
        environment.setdefault("BATCH_UPSTREAM", "any")
    return environment


def connect(config: ClusterConfig) -> None:
    """Joins the Ray cluster, or starts one on this machine."""
    options: dict[str, Any] = {"logging_level": logging.ERROR}
    if config.address:
        options["address"] = config.address
        options["runtime_env"] = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    else:
        options["num_cpus"] = max(os.cpu_count() or 1, config.most * config.cpus_per_replica)
        options["include_dashboard"] = False
        options["object_store_memory"] = OBJECTS_BYTES
    ray.init(**options)
