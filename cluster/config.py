"""The cluster's options. All other options are those of each server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from options import OptionGroup, Options
from serving.config import Config

ROUTER = OptionGroup("router")
REPLICAS = OptionGroup("replicas")


def _replicas(text: str) -> str:
    """Raises ValueError."""
    least, _, most = text.partition("..")
    ends = [least, most or least]
    if not all(end.isdecimal() and 1 <= int(end) <= 512 for end in ends) or text.endswith("."):
        raise ValueError(f"{text!r} is wrong; allowed: N, or LEAST..MOST, from 1 to 512")
    if int(ends[0]) > int(ends[1]):
        raise ValueError(f"{text!r} is wrong; allowed: a LEAST of at most MOST")
    return text


@dataclass(frozen=True, slots=True)
class ClusterConfig(Options):
    """What to start and where. Raises OptionError."""

    usage: ClassVar = "./server.sh cluster [options] [any option of ./server.sh MODE]"
    description: ClassVar = (
        "Starts servers on the machines of a Ray cluster, and a router in front of them. Ray "
        "starts the servers of a machine that died on another one. The router's other options are "
        "its environment variables (./server.sh router --help)."
    )
    prefix: ClassVar = "EB_CLUSTER_"

    host: str = ROUTER.option("127.0.0.1", flags=["--router-host"])
    """address on which the router listens; 0.0.0.0: every interface"""
    port: int = ROUTER.option(8000, least=1, most=65535)
    """port on which the router listens"""

    mode: Literal["nobatch", "static", "dynamic"] = REPLICAS.option("dynamic")
    """how requests share a server's model, as in ./server.sh MODE"""
    replicas: str = REPLICAS.option("2", parse=_replicas)
    """number of servers; 2..8: from 2 to 8, by the requests that wait"""
    address: str = REPLICAS.option("")
    """Ray cluster to join, such as 10.0.0.1:6379, or auto; none: a new one on this machine"""
    replica_port: int = REPLICAS.option(8500, least=1, most=65_000)
    """port of the first server; the others have the ports after it, on whatever machine they are"""
    cpus_per_replica: int = REPLICAS.option(1, least=1)
    """processors that Ray reserves for each server"""
    gpus_per_replica: int = REPLICAS.option(0, least=0)
    """GPUs that Ray reserves for each server"""
    shards: int = REPLICAS.option(0, least=0, most=64)
    """shards of each server, which is then a launcher (./server.sh launcher); 0: the server loads
    the model itself"""

    @property
    def least(self) -> int:
        return int(self.replicas.partition("..")[0])

    @property
    def most(self) -> int:
        return int(self.replicas.rpartition("..")[2])


def read(
    args: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[ClusterConfig, Config]:
    """The cluster's configuration and that of its servers, whose addresses the cluster chooses.
    Ends the process with a message if an option is wrong."""
    mine, servers = ClusterConfig.split(args)
    config = ClusterConfig.from_args(mine, environ)
    environ = {name: text for name, text in environ.items() if name not in ("EB_HOST", "EB_PORT")}
    return config, Config.from_args([config.mode, *servers], environ)
