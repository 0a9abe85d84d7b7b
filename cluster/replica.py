"""A replica: the actor that runs one server as a process of its own, on the machine Ray chose.

Tokens never pass through Ray. The actor starts the server, starts it again when it dies, and says
where it is. The server ends when its actor ends, for whatever reason.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray

from launcher.launcher import probe_of
from model_server.supervisor import Command, ProcessGroup, Supervisor
from serving.config import Config

ROOT = Path(__file__).resolve().parent.parent
DRAIN_GRACE_S = 25.0  # beyond the server's own drain timeout


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """`ended`: the status with which the server ended before it was ever ready, if it did."""

    host: str
    port: int
    ended: int | None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class Replica:
    """`environment`: the server's whole configuration but for its address, and `command` what
    follows the interpreter. It listens on its machine's address in the Ray cluster."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], port: int, drain_s: float
    ) -> None:
        # what it prints, and the server below it, Ray shows where the cluster was started
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        here = ray.get_runtime_context().get_node_id()
        host = next(n["NodeManagerAddress"] for n in ray.nodes() if n["NodeID"] == here)
        self._host, self._port = host, port
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        program = Command(
            "server",
            [sys.executable, *command, "--host", host, "--port", str(port)],
            # what Ray gives the actor, such as the numbers of its GPUs, is in os.environ
            {**os.environ, **environment, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            probe_of(host, port),
            keeps_others=True,
        )
        self._supervisor = Supervisor([ProcessGroup(lambda: [program], drain_s + DRAIN_GRACE_S)])
        self._ended: int | None = None
        self._running = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._running.start()

    def _run(self) -> None:
        self._ended = self._supervisor.run()

    def state(self) -> ReplicaState:
        return ReplicaState(self._host, self._port, self._ended)

    def stop(self) -> None:
        """Returns when the server has answered what it accepted, or its time to drain is over."""
        self._supervisor.stop()
        self._running.join()


def command_of(config: Config, shards: int) -> list[str]:
    """What starts such a server, after the interpreter."""
    if shards:
        return ["-P", "-m", "launcher", "--shards", str(shards), "--mode", config.mode]
    return [str(ROOT / "app.py"), config.mode]
