"""As many replicas as wanted, and the list of upstreams that the router reads.

Each beat asks every replica where it is, writes the list, and asks the router how much waits. The
router reads the list again without touching requests that run. A replica whose machine died stays
in the list until Ray has started it elsewhere: its model stays known, and requests wait for it.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import requests
from ray.exceptions import GetTimeoutError, RayActorError

from cluster.config import ClusterConfig
from cluster.replica import DRAIN_GRACE_S, Replica, ReplicaState, command_of
from cluster.scaling import Scaling
from launcher.launcher import is_healthy
from model_server.supervisor import Supervisor
from router.config import RouterConfig
from serving.config import Config

BEAT_S = 0.5
LATE_S = 30.0  # until a replica that has no machine is worth a line
AGAIN_S = 10.0  # before a server that could not start on its machine is tried again

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Placed:
    """One replica. `asked`, `stopping`: its answers on the way."""

    number: int
    actor: Any
    asked: Any = None
    stopping: Any = None
    state: ReplicaState | None = None
    refused: bool = False  # its last server could not start
    again_at_s: float = 0.0
    late_at_s: float = 0.0  # when it is said that no machine has room


@dataclass(slots=True, eq=False)
class ReplicaFleet:
    """Keeps the replicas. The router, `supervisor`'s process, reads `listed` at SIGHUP."""

    config: ClusterConfig
    server: Config
    router: RouterConfig
    scaling: Scaling
    listed: Path
    supervisor: Supervisor
    started: threading.Event = field(default_factory=threading.Event)  # a router has work
    _replicas: list[_Placed] = field(default_factory=list)
    _leaving: list[_Placed] = field(default_factory=list)
    _text: str = ""  # of the list, as the router knows it

    def beat(self) -> bool:
        """One round; whether the cluster can go on: not if no server could ever be started."""
        while len(self._replicas) < self.config.least:
            self._add()
        for replica in self._replicas:
            self._ask(replica)
        if not self.started.is_set() and all(replica.refused for replica in self._replicas):
            return False
        self._list()
        if (shown := self._shown()) is not None:
            self._scale(shown)
            self._part(shown)
        return True

    def close(self) -> None:
        """All at once: the router has answered everything, so there is nothing to wait for."""
        everyone = [*self._replicas, *self._leaving]
        within_s = self.server.drain_timeout + DRAIN_GRACE_S
        ended = [replica.actor.stop.remote() for replica in everyone]
        ray.wait(ended, num_returns=len(ended), timeout=within_s)
        for replica in everyone:
            ray.kill(replica.actor)

    def _add(self) -> None:
        used = {replica.number for replica in (*self._replicas, *self._leaving)}
        number = next(n for n in range(len(used) + 1) if n not in used)
        environment = self.server.as_environment()
        environment["DATA_DIR"] = str(Path(self.server.data_dir) / f"replica-{number}")
        replica = ray.remote(Replica).options(
            num_cpus=self.config.cpus_per_replica,
            num_gpus=self.config.gpus_per_replica,
            max_restarts=-1,
            max_concurrency=2,  # its state is asked for while it drains
            scheduling_strategy="SPREAD",
        )
        command, port = command_of(self.server, self.config.shards), self.config.replica_port
        drain_s = self.server.drain_timeout
        actor = replica.remote(command, environment, port + number, drain_s)
        self._replicas.append(_Placed(number, actor))
        self._replicas.sort(key=lambda replica: replica.number)
        log.info("replica %d is wanted", number)

    def _ask(self, replica: _Placed) -> None:
        """Takes its answer, and asks again."""
        now_s = time.monotonic()
        if replica.asked is None:
            if replica.again_at_s <= now_s:
                replica.asked = replica.actor.state.remote()
                replica.late_at_s = now_s + LATE_S
            return
        try:
            state: ReplicaState = ray.get(replica.asked, timeout=0)
        except GetTimeoutError:
            if now_s > replica.late_at_s:
                replica.late_at_s = math.inf
                log.warning(
                    "replica %d waits for a machine with %d free CPUs and %d free GPUs",
                    replica.number,
                    self.config.cpus_per_replica,
                    self.config.gpus_per_replica,
                )
            return
        except RayActorError:
            replica.asked, replica.again_at_s = None, now_s + BEAT_S
            log.warning("replica %d was lost; Ray starts it again", replica.number)
            return
        replica.asked = None
        replica.refused = state.ended is not None
        if replica.refused:
            why = "the server of replica %d ended with status %d before it was ready, at %s"
            log.error(why, replica.number, state.ended, state.url)
            ray.kill(replica.actor, no_restart=False)
            replica.again_at_s = now_s + AGAIN_S
            return
        if replica.state is None or replica.state.url != state.url:
            log.info("replica %d is at %s", replica.number, state.url)
        replica.state = state

    def _list(self) -> None:
        """Writes the list if it changed: the first as soon as a server is ready, since a router
        refuses models that it does not know, and later ones when the router hears of them."""
        states = [replica.state for replica in self._replicas if replica.state is not None]
        text = "".join(f"{state.url}\n" for state in states)
        if not self.started.is_set():
            if not any(is_healthy(state.host, state.port) for state in states):
                return
        # before the router listens, the signal would end it
        elif text == self._text or not is_healthy(self.router.host, self.router.port, "/live"):
            return
        whole = self.listed.with_suffix(".new")
        whole.write_text(text)
        whole.replace(self.listed)
        self._text = text
        if self.started.is_set():
            for process in self.supervisor.processes:
                process.send_signal(signal.SIGHUP)
        self.started.set()

    def _shown(self) -> dict[str, Any] | None:
        """The router's `/upstreams`; None while it does not answer."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.router.host, self.router.host)
        keys = [self.router.admin_key, *self.router.api_keys]
        try:
            response = requests.get(
                f"http://{host}:{self.router.port}/upstreams",
                headers={"Authorization": f"Bearer {next(filter(None, keys), '')}"},
                timeout=5,
            )
            response.raise_for_status()
            return dict(response.json())
        except (requests.RequestException, ValueError):
            return None

    def _scale(self, shown: Mapping[str, Any]) -> None:
        upstreams = shown["upstreams"]
        ready = sum(u["ready"] for u in upstreams)
        waiting, running = sum(shown["waiting"].values()), sum(u["in_flight"] for u in upstreams)
        present = len(self._replicas)
        wanted = self.scaling.wanted(time.monotonic(), present, ready, waiting, running)
        if wanted != present:
            log.info("%d replicas, from now on %d: %d requests wait", present, wanted, waiting)
        for _ in range(present, wanted):
            self._add()
        for _ in range(wanted, present):
            self._leaving.append(self._replicas.pop())

    def _part(self, shown: Mapping[str, Any]) -> None:
        """Stops the replicas that the router no longer chooses; they answer what they accepted."""
        chosen = {upstream["url"] for upstream in shown["upstreams"]}
        for replica in list(self._leaving):
            if replica.stopping is None:
                if replica.state is None or replica.state.url not in chosen:
                    replica.stopping = replica.actor.stop.remote()
            elif ray.wait([replica.stopping], timeout=0)[0]:
                self._leaving.remove(replica)
                ray.kill(replica.actor)
                log.info("replica %d has ended", replica.number)
